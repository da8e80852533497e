package aftershock;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.util.List;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Sends records in the order of the orders; a callback reports each result. */
final class Producing {
    private static final long LOOK_AGAIN_MS = 50;
    private final KafkaProducer<byte[], byte[]> producer;
    private final Pipe pipe;
    private final Thread sending = Thread.currentThread();

    private Producing(KafkaProducer<byte[], byte[]> producer, Pipe pipe) {
        this.producer = producer;
        this.pipe = pipe;
    }

    /** Run until `close`; closing the producer waits for pending records. */
    static void run(JsonNode told, Pipe pipe) throws IOException, InterruptedException {
        ByteArraySerializer plain = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(Settings.ofProducer(told), plain, plain)) {
            Producing producing = new Producing(producer, pipe);
            for (JsonNode topic : told.get("topics")) {
                awaitLeaders(producer, topic.get("name").asText(), topic.get("partitions").asInt());
            }
            Traffic.watch(producer::metrics, pipe);
            pipe.say("ready", "accepts", List.of("topics"), "reports", Connections.reports());
            for (JsonNode order = pipe.next(); order != null; order = pipe.next()) {
                producing.send(order);
            }
        }
    }

    static void awaitLeaders(Producer<?, ?> producer, String topic, int partitions) throws InterruptedException {
        while (led(producer, topic) < partitions) {
            Thread.sleep(LOOK_AGAIN_MS);
        }
    }

    private static long led(Producer<?, ?> producer, String topic) {
        try {
            List<PartitionInfo> known = producer.partitionsFor(topic);
            return known.stream().filter(partition -> partition.leader() != null).count();
        } catch (TimeoutException notYet) {
            return 0;
        }
    }

    private void send(JsonNode order) throws IOException {
        long seq = order.get("seq").asLong();
        try {
            producer.send(record(order), (where, error) -> {
                if (error == null) {
                    pipe.say("acked", "seq", seq, "partition", where.partition(), "offset", where.offset());
                } else {
                    failed(seq, error);
                }
            });
        } catch (KafkaException refused) {
            failed(seq, refused);
        }
    }

    /** KafkaProducer calls back on its own thread for accepted records, and inside `send` for refused records. */
    private void failed(long seq, Exception error) {
        if (Thread.currentThread() == sending) {
            pipe.say("failed", "seq", seq, "error", Failure.nameOf(error), "in_doubt", false);
        } else {
            pipe.say("failed", "seq", seq, "error", Failure.nameOf(error));
        }
    }

    private ProducerRecord<byte[], byte[]> record(JsonNode order) throws IOException {
        byte[] key = order.hasNonNull("key") ? order.get("key").binaryValue() : null;
        String topic = order.get("topic").asText();
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(topic, key, order.get("value").binaryValue());
        for (JsonNode header : order.get("headers")) {
            record.headers().add(header.get(0).asText(), header.get(1).binaryValue());
        }
        return record;
    }
}
