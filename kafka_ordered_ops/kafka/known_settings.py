"""The settings of librdkafka that a connection may set: none of them runs code or undoes a guarantee."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: This package's own: what makes the tokens of OAUTHBEARER, and the region of Amazon's. Not passed to librdkafka.
TOKEN_PROVIDER: Final = "sasl.token.provider"
TOKEN_REGION: Final = "sasl.token.region"
#: The provider for Amazon MSK. Others are named as ``module:function``.
AWS_MSK_IAM: Final = "aws-msk-iam"

ALLOWED_COMMON: Final = frozenset(
    {
        "bootstrap.servers",
        "metadata.broker.list",
        "client.id",
        "client.rack",
        "client.dns.lookup",
        "security.protocol",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "sasl.kerberos.service.name",
        "sasl.kerberos.principal",
        "sasl.kerberos.keytab",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.oauthbearer.method",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.extensions",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.grant.type",
        "sasl.oauthbearer.sub.claim.name",
        "sasl.oauthbearer.metadata.authentication.type",
        "sasl.oauthbearer.assertion.algorithm",
        "sasl.oauthbearer.assertion.private.key.file",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.assertion.private.key.pem",
        "sasl.oauthbearer.assertion.file",
        "sasl.oauthbearer.assertion.jwt.template.file",
        "sasl.oauthbearer.assertion.claim.aud",
        "sasl.oauthbearer.assertion.claim.exp.seconds",
        "sasl.oauthbearer.assertion.claim.iss",
        "sasl.oauthbearer.assertion.claim.jti.include",
        "sasl.oauthbearer.assertion.claim.nbf.seconds",
        "sasl.oauthbearer.assertion.claim.sub",
        "ssl.cipher.suites",
        "ssl.curves.list",
        "ssl.sigalgs.list",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.ca.certificate.stores",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.crl.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "https.ca.location",
        "https.ca.pem",
        "socket.timeout.ms",
        "socket.connection.setup.timeout.ms",
        "socket.keepalive.enable",
        "socket.max.fails",
        "socket.nagle.disable",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
        "connections.max.idle.ms",
        "reconnect.backoff.ms",
        "reconnect.backoff.max.ms",
        "retry.backoff.ms",
        "retry.backoff.max.ms",
        "broker.address.family",
        "broker.address.ttl",
        "broker.version.fallback",
        "api.version.request",
        "api.version.request.timeout.ms",
        "api.version.fallback.ms",
        "topic.metadata.refresh.interval.ms",
        "topic.metadata.refresh.fast.interval.ms",
        "topic.metadata.refresh.sparse",
        "topic.metadata.propagation.max.ms",
        "metadata.max.age.ms",
        "metadata.recovery.strategy",
        "metadata.recovery.rebootstrap.trigger.ms",
        "message.max.bytes",
        "message.copy.max.bytes",
        "receive.message.max.bytes",
        "enable.metrics.push",
        "log.connection.close",
        "log.thread.name",
        "log_level",
    }
)
ALLOWED_CONSUMER: Final = frozenset(
    {
        "fetch.error.backoff.ms",
        "fetch.max.bytes",
        "fetch.message.max.bytes",
        "fetch.min.bytes",
        "fetch.queue.backoff.ms",
        "fetch.wait.max.ms",
        "max.partition.fetch.bytes",
        "queued.max.messages.kbytes",
        "queued.min.messages",
        "coordinator.query.interval.ms",
    }
)
ALLOWED_PRODUCER: Final = frozenset(
    {
        "batch.num.messages",
        "batch.size",
        "compression.codec",
        "compression.level",
        "compression.type",
        "delivery.timeout.ms",
        "linger.ms",
        "message.timeout.ms",
        "queue.buffering.max.kbytes",
        "queue.buffering.max.messages",
        "queue.buffering.max.ms",
        "queue.buffering.backpressure.threshold",
        "request.timeout.ms",
        "sticky.partitioning.linger.ms",
    }
)
#: Settings of the schema registry's client, each with `REGISTRY_PREFIX`: those that neither run code nor switch off a check.
ALLOWED_REGISTRY: Final = frozenset(
    {
        "url",
        "basic.auth.user.info",
        "bearer.auth.credentials.source",
        "bearer.auth.token",
        "bearer.auth.client.id",
        "bearer.auth.client.secret",
        "bearer.auth.scope",
        "bearer.auth.issuer.endpoint.url",
        "bearer.auth.logical.cluster",
        "bearer.auth.identity.pool.id",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
    }
)
REGISTRY_PREFIX: Final = "schema.registry."
ALLOWED_KEYS: Final = ALLOWED_COMMON | ALLOWED_CONSUMER | ALLOWED_PRODUCER

#: Java's names for settings that librdkafka names differently: in a file for a Java client they are not typos.
JAVA_HINTS: Final[Mapping[str, str]] = {
    "sasl.jaas.config": "set sasl.mechanism, sasl.username and sasl.password instead",
    "sasl.login.callback.handler.class": "set sasl.oauthbearer.method=oidc or sasl.token.provider instead",
    "ssl.truststore.location": "set ssl.ca.location to a PEM file instead",
    "ssl.truststore.password": "a PEM file in ssl.ca.location needs no password",
    "ssl.truststore.certificates": "set ssl.ca.pem instead",
    "ssl.keystore.type": "ssl.keystore.location takes PKCS#12; for PEM set ssl.key.location and ssl.certificate.location",
    "ssl.keystore.key": "set ssl.key.pem instead",
    "ssl.keystore.certificate.chain": "set ssl.certificate.pem instead",
    "default.api.timeout.ms": "set socket.timeout.ms instead",
}

#: How librdkafka fetches ahead, refreshes its metadata, commits and logs. For another client that reads exact offsets, and
#: never joins or commits, these settings mean nothing.
ONLY_OF_LIBRDKAFKA: Final = frozenset(
    {
        "auto.offset.reset",
        "coordinator.query.interval.ms",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.metrics.push",
        "enable.partition.eof",
        "fetch.error.backoff.ms",
        "fetch.queue.backoff.ms",
        "group.id",
        "log.connection.close",
        "log.thread.name",
        "log_level",
        "message.copy.max.bytes",
        "message.max.bytes",
        "metadata.max.age.ms",
        "queued.min.messages",
        "topic.metadata.propagation.max.ms",
        "topic.metadata.refresh.fast.interval.ms",
        "topic.metadata.refresh.interval.ms",
        "topic.metadata.refresh.sparse",
    }
)
