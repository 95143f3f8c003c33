"""The service that every host calls."""

from kafka_ordered_ops.core.window.policy import Policy as Policy
from kafka_ordered_ops.kafka.settings import ClientSettings as ClientSettings
from kafka_ordered_ops.windows.delivery import Delivery as Delivery
from kafka_ordered_ops.windows.service import OrderedWindows as OrderedWindows
from kafka_ordered_ops.windows.sink import Staged as Staged
