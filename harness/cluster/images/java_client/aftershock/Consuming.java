package aftershock;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Consumes records, and reports them as `poll` returns them. */
final class Consuming implements ConsumerRebalanceListener {
    private static final Duration POLL = Duration.ofMillis(100);
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final Pipe pipe;

    private Consuming(KafkaConsumer<byte[], byte[]> consumer, Pipe pipe) {
        this.consumer = consumer;
        this.pipe = pipe;
    }

    /** Run until `close`; closing the consumer commits and leaves the group. */
    static void run(JsonNode told, Pipe pipe) {
        ByteArrayDeserializer plain = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(Settings.ofConsumer(told), plain, plain)) {
            Consuming consuming = new Consuming(consumer, pipe);
            Thread listener = new Thread(() -> awaitClose(pipe), "orders");
            listener.start();
            Traffic.watch(consumer::metrics, pipe);
            consuming.begin(told);
            while (listener.isAlive()) {
                consumer.poll(POLL).forEach(consuming::report);
            }
        }
    }

    private static void awaitClose(Pipe pipe) {
        try {
            while (pipe.next() != null) {}
        } catch (IOException | InterruptedException error) {
            throw new IllegalStateException(error); // unreadable input ends the loop, as `close` does
        }
    }

    private void begin(JsonNode told) {
        String topic = told.get("topic").asText();
        if (told.hasNonNull("group")) {
            consumer.subscribe(List.of(topic), this);
            return;
        }
        Map<TopicPartition, Long> starts = new HashMap<>();
        told.get("positions").properties().forEach(start ->
                starts.put(new TopicPartition(topic, Integer.parseInt(start.getKey())), start.getValue().asLong()));
        consumer.assign(starts.keySet());
        starts.forEach(consumer::seek);
        assigned(starts.keySet(), null);
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        assigned(partitions, consumer.groupMetadata().memberId());
    }

    private void assigned(Collection<TopicPartition> partitions, String member) {
        pipe.say("assigned", "partitions", numbers(partitions), "member", member);
        pipe.say("ready");
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        pipe.say("revoked", "partitions", numbers(partitions));
    }

    private static List<Integer> numbers(Collection<TopicPartition> partitions) {
        return partitions.stream().map(TopicPartition::partition).toList();
    }

    private void report(ConsumerRecord<byte[], byte[]> record) {
        Header mark = record.headers().lastHeader("aftershock");
        pipe.say(
                "record", "partition", record.partition(), "offset", record.offset(),
                "mark", mark == null ? null : mark.value(), "size_bytes", Math.max(0, record.serializedValueSize()),
                "leader_epoch", record.leaderEpoch().orElse(-1));
    }
}
