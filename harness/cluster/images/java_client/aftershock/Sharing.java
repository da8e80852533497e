package aftershock;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Collection;
import java.util.Deque;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ShareGroupDescription;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Share groups (KIP-932): each order acknowledges the next record of a group. For `share: true` of an arm that commits.
 *
 * <p>1. A group is one KafkaShareConsumer on its own thread. It keeps a few acquired records ready, so that an order
 * waits only for its ShareAcknowledge; it fetches again when the last of these records is acknowledged.
 *
 * <p>2. An order without a record until its deadline fails with `_NO_OFFSET`, and no request was sent for it.
 *
 * <p>3. Records without an order are released before their lock ends, because later acknowledgements would fail.
 *
 * <p>4. Kafka's client calls back only from its own methods: poll it every millisecond while an order is pending.
 */
final class Sharing extends Thread {
    private static final int GROUPS_MAX = 32; // two threads, three connections and about a MiB of heap each
    private static final long IDLE_MS = 100;
    private static final long TICK_MS = 1;
    private static final long HELD_MAX_MS = 10_000; // the shortest lock that a broker grants is 15 s, the default 30 s
    private final KafkaShareConsumer<byte[], byte[]> consumer;
    private final String topic;
    private final Pipe pipe;
    private final LinkedBlockingQueue<Order> orders = new LinkedBlockingQueue<>();
    private final Deque<ConsumerRecord<byte[], byte[]>> held = new ArrayDeque<>();
    private final Map<Place, Order> open = new HashMap<>();
    private long heldSinceNs;
    private volatile boolean closing;

    private record Order(long seq, long untilNs) {}

    private record Place(int partition, long offset) {}

    private Sharing(JsonNode told, String group, int number, Pipe pipe) {
        ByteArrayDeserializer plain = new ByteArrayDeserializer();
        this.consumer = new KafkaShareConsumer<>(Settings.ofShareConsumer(told, group, number), plain, plain);
        this.topic = told.get("topic").asText();
        this.pipe = pipe;
        setDaemon(true);
        setUncaughtExceptionHandler((thread, error) -> Main.die(error, pipe));
    }

    /** Run until `close`, and until every member has left its group. */
    static void run(JsonNode told, Pipe pipe) throws IOException, InterruptedException, ExecutionException {
        Map<String, Sharing> groups = join(told, pipe);
        long deadlineNs = TimeUnit.MILLISECONDS.toNanos(told.get("deadline_ms").asLong());
        Traffic.watch(() -> metricsOf(groups), pipe);
        pipe.say("ready", "reports", Connections.reports());
        for (JsonNode order = pipe.next(); order != null; order = pipe.next()) {
            long untilNs = System.nanoTime() + deadlineNs;
            groups.get(order.get("group").asText()).orders.add(new Order(order.get("seq").asLong(), untilNs));
        }
        groups.values().forEach(group -> group.closing = true);
        for (Sharing group : groups.values()) {
            group.join();
        }
    }

    /** Return all groups, after each member was assigned every partition, which takes some seconds. */
    private static Map<String, Sharing> join(JsonNode told, Pipe pipe) throws InterruptedException, ExecutionException {
        JsonNode names = told.get("groups");
        if (names.size() > GROUPS_MAX) {
            throw new IllegalArgumentException("`share` takes at most " + GROUPS_MAX + " groups, not " + names.size());
        }
        Map<String, Sharing> groups = new LinkedHashMap<>();
        names.forEach(name -> groups.put(name.asText(), new Sharing(told, name.asText(), groups.size(), pipe)));
        try (Admin admin = Admin.create(Settings.ofAdmin(told))) {
            fromTheBeginning(admin, groups.keySet());
            groups.values().forEach(Thread::start);
            while (!assigned(admin, groups.keySet(), told.get("partitions").asInt())) {
                Thread.sleep(IDLE_MS);
            }
        }
        return groups;
    }

    private static void fromTheBeginning(Admin admin, Set<String> groups) throws InterruptedException, ExecutionException {
        ConfigEntry earliest = new ConfigEntry("share.auto.offset.reset", "earliest");
        List<AlterConfigOp> change = List.of(new AlterConfigOp(earliest, AlterConfigOp.OpType.SET));
        Map<ConfigResource, Collection<AlterConfigOp>> changes = new HashMap<>();
        groups.forEach(name -> changes.put(new ConfigResource(ConfigResource.Type.GROUP, name), change));
        admin.incrementalAlterConfigs(changes).all().get();
    }

    private static boolean assigned(Admin admin, Set<String> groups, int partitions) throws InterruptedException {
        try {
            return admin.describeShareGroups(groups).all().get().values().stream()
                    .allMatch(group -> partitions == assigned(group));
        } catch (ExecutionException notYet) {
            return false;
        }
    }

    private static int assigned(ShareGroupDescription group) {
        return group.members().stream().mapToInt(each -> each.assignment().topicPartitions().size()).sum();
    }

    private static Map<MetricName, Metric> metricsOf(Map<String, Sharing> groups) {
        return groups.values().stream()
                .flatMap(group -> group.consumer.metrics().entrySet().stream())
                .collect(Collectors.toMap(Map.Entry::getKey, Map.Entry::getValue, (one, same) -> one));
    }

    @Override
    public void run() {
        try (consumer) {
            consumer.setAcknowledgementCommitCallback(this::acknowledged);
            consumer.subscribe(List.of(topic));
            while (!closing) {
                if (held.isEmpty()) {
                    acquire();
                } else {
                    serve();
                }
            }
            orders.forEach(this::failWithoutRecord);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    private void acquire() {
        consumer.poll(Duration.ofMillis(patienceMs())).forEach(held::add);
        heldSinceNs = System.nanoTime();
        while (held.isEmpty() && !orders.isEmpty() && orders.peek().untilNs() - System.nanoTime() < 0) {
            failWithoutRecord(orders.remove());
        }
    }

    private void serve() throws InterruptedException {
        Order order = orders.poll(patienceMs(), TimeUnit.MILLISECONDS);
        if (order != null) {
            ConsumerRecord<byte[], byte[]> record = held.remove();
            open.put(new Place(record.partition(), record.offset()), order);
            consumer.acknowledge(record, AcknowledgeType.ACCEPT);
        } else if (System.nanoTime() - heldSinceNs > TimeUnit.MILLISECONDS.toNanos(HELD_MAX_MS)) {
            held.forEach(record -> consumer.acknowledge(record, AcknowledgeType.RELEASE));
            held.clear();
        }
        consumer.commitAsync(); // also calls back for acknowledgements that were answered
    }

    private long patienceMs() {
        return open.isEmpty() ? IDLE_MS : TICK_MS;
    }

    private void acknowledged(Map<TopicIdPartition, Set<Long>> answered, Exception error) {
        answered.forEach((partition, offsets) ->
                offsets.forEach(offset -> report(new Place(partition.partition(), offset), error)));
    }

    private void report(Place place, Exception error) {
        Order order = open.remove(place);
        if (order == null) {
            return; // released
        }
        if (error == null) {
            pipe.say("acked", "seq", order.seq(), "partition", place.partition(), "offset", place.offset());
        } else {
            pipe.say("failed", "seq", order.seq(), "error", Failure.nameOf(error));
        }
    }

    private void failWithoutRecord(Order order) {
        pipe.say("failed", "seq", order.seq(), "error", "_NO_OFFSET", "in_doubt", false);
    }
}
