package aftershock;

import static java.util.stream.Collectors.groupingBy;
import static java.util.stream.Collectors.mapping;
import static java.util.stream.Collectors.toList;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InterruptException;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Consumes records, and reports each after it was processed; commits if the worker's start order asks for it. */
final class Consuming implements ConsumerRebalanceListener {
    private static final long POLL_MS = 100;
    private static final List<String> ACCEPTS = List.of("stop_polling", "topics", "isolation");
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final Pipe pipe;
    private final boolean grouped;
    private final long pollMs;
    private final long processingMs;
    private final long commitEveryNanos; // 0 if commits are not due by time
    private final int commitEveryRecords; // 0 if commits are not due by records
    private final Map<TopicPartition, OffsetAndMetadata> processed = new HashMap<>(); // and not committed
    private volatile boolean polls = true;
    private int records;
    private long committedNanos = System.nanoTime();

    private Consuming(KafkaConsumer<byte[], byte[]> consumer, JsonNode told, Pipe pipe) {
        this.consumer = consumer;
        this.pipe = pipe;
        grouped = told.hasNonNull("group");
        pollMs = told.path("settings").path(Settings.POLL).asLong(POLL_MS);
        processingMs = told.path("processing_ms").asLong();
        commitEveryNanos = told.path("commit").path("every_ms").asLong() * 1_000_000;
        commitEveryRecords = told.path("commit").path("every_records").asInt();
    }

    /** Run until `close`; closing the consumer commits and leaves the group. */
    static void run(JsonNode told, Pipe pipe) {
        ByteArrayDeserializer plain = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(Settings.ofConsumer(told), plain, plain)) {
            Consuming consuming = new Consuming(consumer, told, pipe);
            Thread listener = new Thread(consuming::awaitClose, "orders");
            listener.start();
            Traffic.watch(consumer::metrics, pipe);
            consuming.begin(told);
            while (listener.isAlive()) {
                if (consuming.polls) {
                    consumer.poll(Duration.ofMillis(consuming.pollMs)).forEach(consuming::process);
                    consuming.commitIfDue();
                } else {
                    pause(POLL_MS);
                }
            }
        } catch (WakeupException closing) {
            // the consumer is closed all the same
        }
    }

    private void awaitClose() {
        try {
            for (JsonNode order = pipe.next(); order != null; order = pipe.next()) {
                polls = !order.get("do").asText().equals("stop_polling");
            }
            if (pollMs > POLL_MS) {
                consumer.wakeup(); // a longer poll would delay the close
            }
        } catch (IOException | InterruptedException error) {
            throw new IllegalStateException(error); // unreadable input ends the loop, as `close` does
        }
    }

    private void begin(JsonNode told) {
        if (told.hasNonNull("group")) {
            subscribe(told);
            if (told.path("members").asInt() > 1) {
                pipe.say("ready", "accepts", ACCEPTS, "reports", Connections.reports()); // a member of several may get no partitions
            }
            return;
        }
        Map<TopicPartition, Long> starts = new HashMap<>();
        told.get("topics").forEach(topic -> topic.get("positions").properties().forEach(start -> starts.put(
                new TopicPartition(topic.get("name").asText(), Integer.parseInt(start.getKey())),
                start.getValue().asLong())));
        consumer.assign(starts.keySet());
        starts.forEach(consumer::seek);
        assigned(starts.keySet(), null);
    }

    /** Subscribe to the topics, or to a pattern, which brokers match in the consumer protocol (KIP-848). */
    private void subscribe(JsonNode told) {
        String protocol = String.valueOf(Settings.ofConsumer(told).getOrDefault("group.protocol", "classic"));
        if (!told.hasNonNull("pattern")) {
            List<String> names = new ArrayList<>();
            told.get("topics").forEach(topic -> names.add(topic.get("name").asText()));
            consumer.subscribe(names, this);
        } else if (protocol.equalsIgnoreCase("consumer")) {
            subscribeByBrokers(told.get("pattern").asText());
        } else {
            consumer.subscribe(Pattern.compile(told.get("pattern").asText()), this);
        }
    }

    /** Subscribe to a pattern of RE2, which Kafka's clients before 4.0 can't. */
    private void subscribeByBrokers(String pattern) {
        consumer.subscribe(new org.apache.kafka.clients.consumer.SubscriptionPattern(pattern), this);
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        assigned(partitions, consumer.groupMetadata().memberId());
    }

    private void assigned(Collection<TopicPartition> partitions, String member) {
        byTopic(partitions).forEach((topic, numbers) ->
                pipe.sayTimed("assigned", "topic", topic, "partitions", numbers, "member", member, "epoch", epoch()));
        if (partitions.isEmpty()) {
            pipe.sayTimed("assigned", "partitions", List.of(), "member", member, "epoch", epoch());
        }
        pipe.say("ready", "accepts", ACCEPTS, "reports", Connections.reports());
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>(processed);
        offsets.keySet().retainAll(partitions);
        processed.keySet().removeAll(partitions);
        if (!offsets.isEmpty()) {
            long began = System.nanoTime();
            int epoch = epoch();
            try {
                consumer.commitSync(offsets);
                committed(offsets, began, epoch);
            } catch (KafkaException error) {
                failed(error);
            }
        }
        byTopic(partitions).forEach((topic, numbers) ->
                pipe.sayTimed("revoked", "topic", topic, "partitions", numbers, "epoch", epoch()));
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        processed.keySet().removeAll(partitions);
        byTopic(partitions).forEach((topic, numbers) ->
                pipe.sayTimed("lost", "topic", topic, "partitions", numbers, "epoch", epoch()));
    }

    /** Return the numbers of the partitions by topic; a report is about one topic. */
    private static Map<String, List<Integer>> byTopic(Collection<TopicPartition> partitions) {
        return partitions.stream().collect(groupingBy(TopicPartition::topic, mapping(TopicPartition::partition, toList())));
    }

    /** The member epoch, or the generation of a classic group; -1 without a group. */
    private int epoch() {
        return grouped ? consumer.groupMetadata().generationId() : -1;
    }

    private void process(ConsumerRecord<byte[], byte[]> record) {
        pause(processingMs);
        report(record);
        if (commitEveryNanos > 0 || commitEveryRecords > 0) {
            processed.put(
                    new TopicPartition(record.topic(), record.partition()),
                    new OffsetAndMetadata(record.offset() + 1, record.leaderEpoch(), ""));
            records++;
            commitIfDue();
        }
    }

    private static void pause(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException error) {
            throw new InterruptException(error);
        }
    }

    private void commitIfDue() {
        long now = System.nanoTime();
        boolean late = commitEveryNanos > 0 && now - committedNanos >= commitEveryNanos;
        boolean enough = commitEveryRecords > 0 && records >= commitEveryRecords;
        if (processed.isEmpty() || !(late || enough)) {
            return;
        }
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>(processed);
        int epoch = epoch();
        processed.clear();
        records = 0;
        committedNanos = now;
        consumer.commitAsync(offsets, (accepted, error) -> {
            if (error == null) {
                committed(accepted, now, epoch);
            } else {
                failed(error);
            }
        });
    }

    private void committed(Map<TopicPartition, OffsetAndMetadata> offsets, long began, int epoch) {
        long tookUs = (System.nanoTime() - began) / 1_000;
        Map<String, Map<String, Long>> topics = new HashMap<>();
        offsets.forEach((place, offset) -> topics.computeIfAbsent(place.topic(), name -> new HashMap<>())
                .put(String.valueOf(place.partition()), offset.offset()));
        topics.forEach((topic, numbers) ->
                pipe.sayTimed("committed", "topic", topic, "offsets", numbers, "took_us", tookUs, "epoch", epoch));
    }

    private void failed(Exception error) {
        pipe.say("error", "error", Failure.nameOf(error), "detail", String.valueOf(error.getMessage()));
    }

    private void report(ConsumerRecord<byte[], byte[]> record) {
        Header mark = record.headers().lastHeader("aftershock");
        pipe.sayTimed(
                "record", "topic", record.topic(), "partition", record.partition(), "offset", record.offset(),
                "mark", mark == null ? null : mark.value(), "size_bytes", Math.max(0, record.serializedValueSize()),
                "leader_epoch", record.leaderEpoch().orElse(-1));
    }
}
