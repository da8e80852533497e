package aftershock;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Sends records in the order of the orders, in transactions if the start order has them; a callback reports results. */
final class Producing {
    private static final long LOOK_AGAIN_MS = 50;
    private final JsonNode told;
    private final Pipe pipe;
    private final Thread sending = Thread.currentThread();
    private KafkaProducer<byte[], byte[]> producer;

    private Producing(JsonNode told, Pipe pipe) {
        this.told = told;
        this.pipe = pipe;
    }

    /** Run until `close`; closing the producer waits for pending records, and aborts an open transaction. */
    static void run(JsonNode told, Pipe pipe) throws IOException, InterruptedException {
        Producing producing = new Producing(told, pipe);
        KafkaProducer<byte[], byte[]> first = producing.open();
        try {
            Traffic traffic = Traffic.watch(first::metrics, pipe);
            Transactions transactions = new Transactions(pipe, traffic, producing::open, first);
            pipe.say("ready", "accepts", List.of("topics", "transactions"), "reports", Connections.reports());
            for (JsonNode order = pipe.next(); order != null; order = pipe.next()) {
                if (order.get("do").asText().equals("send")) {
                    producing.send(order);
                } else {
                    transactions.obey(order.get("do").asText());
                }
            }
        } finally {
            producing.producer.close();
        }
    }

    /** Open a producer in the place of the one before, and wait until it can send its first record. */
    private KafkaProducer<byte[], byte[]> open() throws InterruptedException {
        ByteArraySerializer plain = new ByteArraySerializer();
        Map<String, Object> settings = Settings.ofProducer(told);
        producer = new KafkaProducer<>(settings, plain, plain);
        for (JsonNode topic : told.get("topics")) {
            awaitLeaders(producer, topic.get("name").asText(), topic.get("partitions").asInt());
        }
        if (settings.containsKey("transactional.id")) {
            Transactions.init(producer);
        }
        return producer;
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

    /**
     * Send a record, and report it once. KafkaProducer appends a record before it asks whether the transaction has
     * failed, so that it calls back inside `send`, and again when it gives the batch up.
     */
    private void send(JsonNode order) throws IOException {
        long seq = order.get("seq").asLong();
        AtomicBoolean isReported = new AtomicBoolean();
        try {
            producer.send(record(order), (where, error) -> {
                if (isReported.getAndSet(true)) {
                    return;
                }
                if (error == null) {
                    pipe.say("acked", "seq", seq, "partition", where.partition(), "offset", where.offset());
                } else {
                    failed(seq, error);
                }
            });
        } catch (KafkaException refused) {
            if (!isReported.getAndSet(true)) {
                failed(seq, refused);
            }
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
