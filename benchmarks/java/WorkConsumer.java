import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelEoSStreamProcessor;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Confluent's Parallel Consumer at work: each record takes as many milliseconds as its value says.
 *
 * <p>Arguments: bootstrap, topic (of one partition), ordering, concurrency, number of records.
 *
 * <p>Each line of the standard input is a group and a file, separated by a blank: the topic is processed from its start
 * by that group, and the file gets when each record's function began, then when each ended: nanoseconds, by offset, 8
 * bytes each. Then a line is printed. The end of the input ends the program.
 */
public final class WorkConsumer {
    private static final long TIMEOUT_S = 600;

    private final String bootstrap;
    private final String topic;
    private final ProcessingOrder ordering;
    private final int concurrency;
    private final int records;

    private WorkConsumer(List<String> given) {
        bootstrap = given.get(0);
        topic = given.get(1);
        ordering = ProcessingOrder.valueOf(given.get(2));
        concurrency = Integer.parseInt(given.get(3));
        records = Integer.parseInt(given.get(4));
    }

    public static void main(String[] arguments) throws Exception {
        WorkConsumer program = new WorkConsumer(List.of(arguments));
        var orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String order; (order = orders.readLine()) != null; ) {
            String[] groupAndFile = order.split(" ", 2);
            program.run(groupAndFile[0], Path.of(groupAndFile[1]));
            System.out.println("done");
        }
        Runtime.getRuntime().halt(0);
    }

    private void run(String group, Path file) throws Exception {
        long[] began = new long[records];
        long[] ended = new long[records];
        CountDownLatch left = new CountDownLatch(records);
        try (var processor = new ParallelEoSStreamProcessor<>(options(group))) {
            processor.subscribe(List.of(topic));
            processor.poll(
                    context -> {
                        ConsumerRecord<byte[], byte[]> record = context.getSingleConsumerRecord();
                        int offset = Math.toIntExact(record.offset());
                        began[offset] = System.nanoTime();
                        work(record.value());
                        ended[offset] = System.nanoTime();
                        left.countDown();
                    });
            if (!left.await(TIMEOUT_S, TimeUnit.SECONDS)) {
                throw new IllegalStateException(left.getCount() + " records are not done", processor.getFailureCause());
            }
        }
        ByteBuffer times = ByteBuffer.allocate(2 * Long.BYTES * records);
        times.asLongBuffer().put(began).put(ended);
        Files.write(file, times.array());
    }

    private static void work(byte[] value) {
        try {
            Thread.sleep(Long.parseLong(new String(value, StandardCharsets.US_ASCII)));
        } catch (InterruptedException ended) {
            throw new IllegalStateException(ended);
        }
    }

    private ParallelConsumerOptions<byte[], byte[]> options(String group) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("enable.auto.commit", false);
        settings.put("auto.offset.reset", "earliest");
        return ParallelConsumerOptions.<byte[], byte[]>builder()
                .consumer(new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer()))
                .ordering(ordering)
                .maxConcurrency(concurrency)
                .build();
    }
}
