import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Executors;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConsumerGroupOffsetsOptions;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Client of docs/EXEC.md built on Kafka's Java client. */
final class ExecClient {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final PrintStream OUTPUT = System.out;
    private static final BlockingQueue<JsonNode> ORDERS = new LinkedBlockingQueue<>();
    private static JsonNode start;
    private static String topic;

    public static void main(String[] arguments) {
        System.setOut(System.err); // standard output is for reports
        Thread reader = new Thread(ExecClient::read);
        reader.setDaemon(true);
        reader.start();
        try {
            start = ORDERS.take();
            topic = start.get("topic").asText();
            switch (start.get("op").asText()) {
                case "produce" -> produce();
                case "consume" -> consume();
                case "commit" -> commit();
                default -> throw new IllegalArgumentException("unknown op " + start.get("op"));
            }
            say("bye");
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            say("died", "why", error.toString());
            System.exit(1);
        }
    }

    /** Read orders all the time; the end of standard input ends the process at once. */
    private static void read() {
        try (BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                ORDERS.add(JSON.readTree(line));
            }
        } catch (IOException error) {
            error.printStackTrace();
        }
        Runtime.getRuntime().halt(1);
    }

    /** Return the next order, null for `close`. */
    private static JsonNode next() throws InterruptedException {
        JsonNode order = ORDERS.take();
        return order.get("do").asText().equals("close") ? null : order;
    }

    /** Write a report with alternating names and values. */
    private static void say(String report, Object... details) {
        Map<String, Object> message = new LinkedHashMap<>(Map.of("say", report));
        for (int at = 0; at < details.length; at += 2) {
            message.put((String) details[at], details[at + 1]);
        }
        try {
            byte[] line = (JSON.writeValueAsString(message) + "\n").getBytes(StandardCharsets.UTF_8);
            synchronized (OUTPUT) {
                OUTPUT.write(line);
                OUTPUT.flush();
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static void failed(long seq, Throwable error) {
        Throwable cause = error instanceof CompletionException ? error.getCause() : error;
        say("failed", "seq", seq, "error", Errors.forException(cause).name());
    }

    /** Return the configuration of a Kafka client: the arm's settings, which `own` and the start order precede. */
    private static Map<String, Object> config(Map<String, Object> own) {
        Map<String, Object> config = new HashMap<>();
        start.get("settings").properties().forEach(setting -> config.put(setting.getKey(), setting.getValue().asText()));
        config.putAll(own);
        config.put("bootstrap.servers", start.get("bootstrap").asText());
        config.put("client.id", start.get("client_id").asText());
        return config;
    }

    private static void produce() throws InterruptedException, IOException {
        int deadlineMs = start.get("deadline_ms").asInt();
        int lingerMs = start.get("linger_ms").asInt();
        Map<String, Object> config = config(Map.of(
                "acks", start.get("acks").asText(),
                "enable.idempotence", start.get("idempotence").asBoolean(),
                "linger.ms", lingerMs,
                "delivery.timeout.ms", deadlineMs));
        config.putIfAbsent("request.timeout.ms", Math.max(1, Math.min(30_000, deadlineMs - lingerMs)));
        config.putIfAbsent("max.block.ms", 100); // the metadata is there; a full buffer must not keep orders waiting
        ByteArraySerializer plain = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(config, plain, plain)) {
            while (!hasLeaders(producer)) {
                Thread.sleep(50);
            }
            reportTraffic(producer::metrics);
            say("ready");
            for (JsonNode order = next(); order != null; order = next()) {
                send(producer, order);
            }
        } // waits for pending records
    }

    private static boolean hasLeaders(KafkaProducer<byte[], byte[]> producer) {
        try {
            return producer.partitionsFor(topic).stream()
                    .filter(partition -> partition.leader() != null && !partition.leader().isEmpty())
                    .count() >= start.get("partitions").asInt();
        } catch (TimeoutException notYet) {
            return false;
        }
    }

    private static void send(KafkaProducer<byte[], byte[]> producer, JsonNode order) throws IOException {
        long seq = order.get("seq").asLong();
        byte[] key = order.get("key").binaryValue(); // null for null
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(topic, key, order.get("value").binaryValue());
        for (JsonNode header : order.get("headers")) {
            record.headers().add(header.get(0).asText(), header.get(1).binaryValue());
        }
        try {
            producer.send(record, (place, error) -> {
                if (error != null) {
                    failed(seq, error);
                } else if (place.hasOffset()) {
                    say("acked", "seq", seq, "partition", place.partition(), "offset", place.offset());
                } else {
                    say("acked", "seq", seq, "partition", place.partition());
                }
            });
        } catch (KafkaException error) { // refused before the callback was kept
            failed(seq, error);
        }
    }

    private static void consume() throws InterruptedException {
        Map<String, Object> own = new HashMap<>(Map.of("auto.offset.reset", start.get("from").asText()));
        own.put("enable.auto.commit", start.hasNonNull("group"));
        if (start.hasNonNull("group")) {
            own.put("group.id", start.get("group").asText());
        }
        if (start.hasNonNull("client_rack")) {
            own.put("client.rack", start.get("client_rack").asText());
        }
        ByteArrayDeserializer plain = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(config(own), plain, plain)) {
            if (start.hasNonNull("group")) {
                consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                    @Override
                    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                        String member = consumer.groupMetadata().memberId();
                        say("assigned", "partitions", numbers(partitions), "member", member);
                        say("ready");
                    }

                    @Override
                    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                        say("revoked", "partitions", numbers(partitions));
                    }
                });
            } else {
                Map<TopicPartition, Long> starts = new HashMap<>();
                start.get("positions").properties().forEach(position -> starts.put(
                        new TopicPartition(topic, Integer.parseInt(position.getKey())), position.getValue().asLong()));
                consumer.assign(starts.keySet());
                starts.forEach(consumer::seek);
                say("assigned", "partitions", numbers(starts.keySet()));
                say("ready");
            }
            reportTraffic(consumer::metrics);
            while (ORDERS.isEmpty()) { // a consumer has no order but `close`
                consumer.poll(Duration.ofMillis(100)).forEach(ExecClient::received);
            }
        } // commits, and leaves the group
    }

    private static List<Integer> numbers(Collection<TopicPartition> partitions) {
        return partitions.stream().map(TopicPartition::partition).toList();
    }

    private static void received(ConsumerRecord<byte[], byte[]> record) {
        Header mark = record.headers().lastHeader("aftershock");
        say("record", "partition", record.partition(), "offset", record.offset(),
                "mark", mark == null ? null : mark.value(), "size_bytes", Math.max(0, record.serializedValueSize()));
    }

    private static void commit() throws Exception {
        try (Admin admin = Admin.create(config(Map.of()))) {
            admin.describeCluster().nodes().get();
            reportTraffic(admin::metrics);
            say("ready");
            Map<String, CompletableFuture<Void>> latest = new HashMap<>(); // Admin may reorder commits that it retries
            for (JsonNode order = next(); order != null; order = next()) {
                JsonNode current = order;
                long untilNs = System.nanoTime() + start.get("deadline_ms").asLong() * 1_000_000;
                latest.compute(order.get("group").asText(), (group, before) ->
                        (before == null ? CompletableFuture.<Void>completedFuture(null) : before)
                                .thenCompose(done -> commit(admin, current, untilNs))
                                .handle((done, error) -> {
                                    if (error == null) {
                                        say("acked", "seq", current.get("seq").asLong());
                                    } else {
                                        failed(current.get("seq").asLong(), error);
                                    }
                                    return null;
                                }));
            }
            CompletableFuture.allOf(latest.values().toArray(CompletableFuture[]::new)).get();
        }
    }

    private static CompletableFuture<Void> commit(Admin admin, JsonNode order, long untilNs) {
        int leftMs = (int) ((untilNs - System.nanoTime()) / 1_000_000);
        if (leftMs <= 0) {
            return CompletableFuture.failedFuture(new TimeoutException("the deadline passed before the commit's turn"));
        }
        TopicPartition partition = new TopicPartition(topic, order.get("partition").asInt());
        Map<TopicPartition, OffsetAndMetadata> offsets =
                Map.of(partition, new OffsetAndMetadata(order.get("offset").asLong()));
        AlterConsumerGroupOffsetsOptions limit = new AlterConsumerGroupOffsetsOptions().timeoutMs(leftMs);
        return admin.alterConsumerGroupOffsets(order.get("group").asText(), offsets, limit)
                .partitionResult(partition)
                .toCompletionStage()
                .toCompletableFuture();
    }

    /** Report each second the bytes sent to and received from each broker, by the client's own metrics. */
    private static void reportTraffic(Supplier<Map<MetricName, ? extends Metric>> metrics) {
        Executors.newSingleThreadScheduledExecutor(task -> {
            Thread thread = new Thread(task);
            thread.setDaemon(true);
            return thread;
        }).scheduleAtFixedRate(() -> {
            Map<Integer, long[]> totals = new HashMap<>();
            metrics.get().forEach((name, metric) -> {
                int column = List.of("outgoing-byte-total", "incoming-byte-total").indexOf(name.name());
                String node = name.tags().getOrDefault("node-id", "");
                if (column >= 0 && node.matches("node-\\d+")) { // node--1 is a bootstrap address
                    int id = Integer.parseInt(node.substring("node-".length()));
                    int broker = id > Integer.MAX_VALUE / 2 ? Integer.MAX_VALUE - id : id; // a coordinator's connection
                    totals.computeIfAbsent(broker, unused -> new long[2])[column] +=
                            ((Double) metric.metricValue()).longValue();
                }
            });
            say("traffic", "brokers", totals);
        }, 1, 1, TimeUnit.SECONDS);
    }
}
