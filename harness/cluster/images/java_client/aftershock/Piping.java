package aftershock;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Pipe of the client `java`: reads a topic with Kafka's consumer, and writes each record to another with its producer.
 *
 * <p>A service like a user's own, configured by the variable AFTERSHOCK_PIPE like the pipes in workloads/adapters, and
 * with their promises: at least once, or exactly once by transactions that have the group's metadata (KIP-447).
 */
final class Piping {
    private static final Duration POLL = Duration.ofMillis(50);
    private static final int STEP_MS = 15_000; // a process that can't end its transaction gives way to a new one
    private static final long CLOSE_MS = 7_000;
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final KafkaProducer<byte[], byte[]> producer;
    private final String to;
    private boolean uncommitted;

    private Piping(KafkaConsumer<byte[], byte[]> consumer, KafkaProducer<byte[], byte[]> producer, String to) {
        this.consumer = consumer;
        this.producer = producer;
        this.to = to;
    }

    /** Run until SIGTERM; an error that only a new process can recover from is thrown. */
    static void run() throws IOException {
        JsonNode told = new ObjectMapper().readTree(System.getenv("AFTERSHOCK_PIPE"));
        boolean transactional = told.get("transactional").asBoolean();
        AtomicBoolean stopping = new AtomicBoolean();
        Thread pipe = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stopping.set(true);
            try {
                pipe.join(CLOSE_MS);
            } catch (InterruptedException killed) {
                Thread.currentThread().interrupt();
            }
        }));
        ByteArrayDeserializer reading = new ByteArrayDeserializer();
        ByteArraySerializer writing = new ByteArraySerializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(consumerConfig(told), reading, reading);
                KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(producerConfig(told), writing, writing)) {
            if (transactional) {
                Transactions.init(producer);
            }
            consumer.subscribe(List.of(told.get("from").asText()));
            Piping piping = new Piping(consumer, producer, told.get("to").asText());
            System.out.println("started");
            while (!stopping.get()) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(POLL);
                if (!transactional) {
                    piping.atLeastOnce(records);
                } else if (!records.isEmpty()) {
                    piping.inTransaction(records);
                }
            }
        }
    }

    private static Map<String, Object> consumerConfig(JsonNode told) {
        Map<String, Object> config = common(told);
        config.put("group.id", told.get("group").asText());
        config.put("enable.auto.commit", false);
        config.put("auto.offset.reset", "earliest");
        config.put("isolation.level", "read_committed");
        return with(told, config, ConsumerConfig.configNames());
    }

    private static Map<String, Object> producerConfig(JsonNode told) {
        Map<String, Object> config = common(told);
        config.put("max.block.ms", STEP_MS);
        if (told.get("transactional").asBoolean()) {
            config.put("transactional.id", told.get("member").asText());
        }
        return with(told, config, ProducerConfig.configNames());
    }

    private static Map<String, Object> common(JsonNode told) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", told.get("bootstrap").asText());
        config.put("client.id", told.get("member").asText());
        return config;
    }

    private static Map<String, Object> with(JsonNode told, Map<String, Object> config, Set<String> names) {
        told.get("settings").properties().forEach(setting -> {
            if (names.contains(setting.getKey())) {
                config.put(setting.getKey(), setting.getValue().asText());
            }
        });
        return config;
    }

    /** Write an output for each record, and commit behind them; an output that is refused ends the process. */
    private void atLeastOnce(ConsumerRecords<byte[], byte[]> records) {
        List<Future<?>> results = new ArrayList<>();
        for (ConsumerRecord<byte[], byte[]> record : records) {
            results.add(producer.send(output(record)));
        }
        producer.flush();
        for (Future<?> result : results) {
            try {
                result.get();
            } catch (Exception refused) {
                throw new KafkaException("an output was refused", refused);
            }
        }
        uncommitted |= !results.isEmpty();
        if (uncommitted) {
            try {
                consumer.commitSync(); // the positions of all records that were polled
                uncommitted = false;
            } catch (KafkaException refused) {
                // the partitions were given to another member, which processes the records again
                System.err.println("commit refused: " + refused);
            }
        }
    }

    /** Write outputs and positions in one transaction; after an error that aborts it, read the records again. */
    private void inTransaction(ConsumerRecords<byte[], byte[]> records) {
        producer.beginTransaction();
        try {
            Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
            for (ConsumerRecord<byte[], byte[]> record : records) {
                producer.send(output(record));
                TopicPartition place = new TopicPartition(record.topic(), record.partition());
                ends.put(place, new OffsetAndMetadata(record.offset() + 1));
            }
            producer.sendOffsetsToTransaction(ends, consumer.groupMetadata());
            commit();
        } catch (KafkaException error) {
            System.err.println("transaction aborted: " + error);
            producer.abortTransaction(); // throws if only a new producer can go on
            rewind();
        }
    }

    /** Commit, and ask a second time if the outcome is not known (KIP-98). */
    private void commit() {
        try {
            producer.commitTransaction();
        } catch (TimeoutException unknown) {
            producer.commitTransaction();
        }
    }

    /** Read on from what the group has committed, in the partitions that the consumer still has. */
    private void rewind() {
        Set<TopicPartition> owned = consumer.assignment();
        Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(owned);
        for (TopicPartition place : owned) {
            if (committed.get(place) == null) {
                consumer.seekToBeginning(Set.of(place));
            } else {
                consumer.seek(place, committed.get(place).offset());
            }
        }
    }

    private ProducerRecord<byte[], byte[]> output(ConsumerRecord<byte[], byte[]> record) {
        return new ProducerRecord<>(to, null, record.key(), record.value(), record.headers());
    }
}
