import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.CommitMode;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelEoSStreamProcessor;
import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Confluent's Parallel Consumer, whose records are all noted, and some held back.
 *
 * <p>Arguments: bootstrap, group, topic, ordering, concurrency, commit mode, commit interval in ms, the file of notes,
 * and the records to hold back, each as {@code partition:offset}. A record is noted as {@code partition offset} before
 * its function returns, so no record is acknowledged that is not in the file.
 *
 * <p>Commands, one a line on the standard input: {@code release} lets the held records pass; {@code drain} processes
 * what has been fetched, commits and ends; {@code close} commits and ends. The end of the input ends the program at
 * once, as a kill does.
 */
public final class HeldConsumer {
    /** Held records are interrupted after it. */
    private static final Duration CLOSE_TIMEOUT = Duration.ofMillis(500);
    private static final long WATCH_INTERVAL_MS = 100;

    private final Set<String> held;
    private final FileOutputStream notes;
    private final CountDownLatch released = new CountDownLatch(1);

    private HeldConsumer(Set<String> held, FileOutputStream notes) {
        this.held = held;
        this.notes = notes;
    }

    public static void main(String[] arguments) throws Exception {
        List<String> given = List.of(arguments);
        FileOutputStream notes = new FileOutputStream(given.get(7), true);
        HeldConsumer program = new HeldConsumer(Set.copyOf(given.subList(8, given.size())), notes);
        try (var processor = new ParallelEoSStreamProcessor<>(options(given))) {
            processor.subscribe(List.of(given.get(2)));
            processor.poll(context -> program.process(context.getSingleConsumerRecord()));
            endOnFailure(processor);
            program.obey(processor);
        }
        Runtime.getRuntime().halt(0);
    }

    private static ParallelConsumerOptions<byte[], byte[]> options(List<String> given) {
        CommitMode commitMode = CommitMode.valueOf(given.get(5));
        var options =
                ParallelConsumerOptions.<byte[], byte[]>builder()
                        .consumer(consumer(given.get(0), given.get(1)))
                        .ordering(ProcessingOrder.valueOf(given.get(3)))
                        .maxConcurrency(Integer.parseInt(given.get(4)))
                        .commitMode(commitMode)
                        .commitInterval(Duration.ofMillis(Long.parseLong(given.get(6))));
        if (commitMode == CommitMode.PERIODIC_TRANSACTIONAL_PRODUCER) {
            options.producer(producer(given.get(0), given.get(1)));
        }
        return options.build();
    }

    private static KafkaConsumer<byte[], byte[]> consumer(String bootstrap, String group) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("enable.auto.commit", false);
        settings.put("auto.offset.reset", "earliest");
        settings.put("isolation.level", "read_committed");
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static KafkaProducer<byte[], byte[]> producer(String bootstrap, String group) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", group);
        // What a killed process leaves open holds the group's offsets back for this long.
        settings.put("transaction.timeout.ms", 5000);
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private void process(ConsumerRecord<byte[], byte[]> record) {
        try {
            if (held.contains(record.partition() + ":" + record.offset())) {
                released.await();
            }
            // One write, to the end of the file: it is whole, or not there.
            String note = record.partition() + " " + record.offset() + "\n";
            notes.write(note.getBytes(StandardCharsets.US_ASCII));
        } catch (InterruptedException | IOException failure) {
            throw new IllegalStateException(failure);
        }
    }

    private void obey(ParallelEoSStreamProcessor<byte[], byte[]> processor) throws IOException {
        var commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String command; (command = commands.readLine()) != null; ) {
            switch (command) {
                case "release" -> released.countDown();
                case "drain" -> {
                    released.countDown();
                    processor.closeDrainFirst();
                    return;
                }
                case "close" -> {
                    processor.closeDontDrainFirst(CLOSE_TIMEOUT);
                    return;
                }
                default -> throw new IllegalArgumentException(command);
            }
        }
        Runtime.getRuntime().halt(0);
    }

    /** The library ends its own threads on an error, and reports it only to those who ask. */
    private static void endOnFailure(ParallelEoSStreamProcessor<?, ?> processor) {
        Thread watch =
                new Thread(
                        () -> {
                            while (processor.getFailureCause() == null) {
                                try {
                                    Thread.sleep(WATCH_INTERVAL_MS);
                                } catch (InterruptedException ended) {
                                    return;
                                }
                            }
                            processor.getFailureCause().printStackTrace();
                            Runtime.getRuntime().halt(1);
                        });
        watch.setDaemon(true);
        watch.start();
    }
}
