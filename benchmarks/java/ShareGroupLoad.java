import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A share group at work: each member reads up to so many records, accepts each of them, and waits for the broker's answer.
 *
 * <p>Arguments: bootstrap, topic, members.
 *
 * <p>Each line of the standard input is a group, the most records of a read, and how many records to accept, separated
 * by blanks: the topic is read from its start. A line is printed: nanoseconds from the subscription to the first record,
 * and from the first record until the last is accepted. The end of the input ends the program.
 */
public final class ShareGroupLoad {
    private static final long TIMEOUT_S = 600;
    private static final Duration WAIT = Duration.ofMillis(200);

    private final String bootstrap;
    private final String topic;
    private final int members;

    private ShareGroupLoad(String bootstrap, String topic, int members) {
        this.bootstrap = bootstrap;
        this.topic = topic;
        this.members = members;
    }

    public static void main(String[] arguments) throws Exception {
        ShareGroupLoad program =
                new ShareGroupLoad(arguments[0], arguments[1], Integer.parseInt(arguments[2]));
        var orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String order; (order = orders.readLine()) != null; ) {
            String[] given = order.split(" ");
            System.out.println(program.run(given[0], Integer.parseInt(given[1]), Integer.parseInt(given[2])));
        }
        Runtime.getRuntime().halt(0);
    }

    private String run(String group, int batch, int records) throws Exception {
        beginAtStart(group);
        AtomicInteger left = new AtomicInteger(records);
        AtomicLong first = new AtomicLong(Long.MAX_VALUE);
        AtomicLong last = new AtomicLong(Long.MIN_VALUE);
        long asked = System.nanoTime();
        ExecutorService threads = Executors.newFixedThreadPool(members);
        List<Future<?>> running = new ArrayList<>();
        for (int member = 0; member < members; member++) {
            running.add(threads.submit(() -> work(group, batch, left, first, last)));
        }
        for (Future<?> one : running) {
            one.get(TIMEOUT_S, TimeUnit.SECONDS);
        }
        threads.shutdown();
        return (first.get() - asked) + " " + (last.get() - first.get());
    }

    private void beginAtStart(String group) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            ConfigEntry earliest = new ConfigEntry("share.auto.offset.reset", "earliest");
            admin.incrementalAlterConfigs(
                            Map.of(
                                    new ConfigResource(ConfigResource.Type.GROUP, group),
                                    List.of(new AlterConfigOp(earliest, AlterConfigOp.OpType.SET))))
                    .all()
                    .get(TIMEOUT_S, TimeUnit.SECONDS);
        }
    }

    private void work(String group, int batch, AtomicInteger left, AtomicLong first, AtomicLong last) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("share.acknowledgement.mode", "explicit");
        // Otherwise a read brings whole batches of the log, however few records are asked for.
        settings.put("share.acquire.mode", "record_limit");
        settings.put("max.poll.records", batch);
        try (var consumer =
                new KafkaShareConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (left.get() > 0) {
                ConsumerRecords<byte[], byte[]> read = consumer.poll(WAIT);
                if (read.isEmpty()) {
                    continue;
                }
                first.accumulateAndGet(System.nanoTime(), Math::min);
                for (ConsumerRecord<byte[], byte[]> record : read) {
                    consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                }
                for (Map.Entry<TopicIdPartition, Optional<KafkaException>> one : consumer.commitSync().entrySet()) {
                    if (one.getValue().isPresent()) {
                        throw one.getValue().get();
                    }
                }
                left.addAndGet(-read.count());
                last.accumulateAndGet(System.nanoTime(), Math::max);
            }
        }
    }
}
