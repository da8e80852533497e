package aftershock;

import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.MetricName;

/** Reports each second the bytes sent to and received from each broker, by the client's own metrics. */
final class Traffic {
    private static final int NODES_MAX = 1 << 20;
    private final Map<String, long[]> before = new HashMap<>(); // of clients that were closed
    private Supplier<Map<MetricName, ? extends Metric>> metrics;

    private Traffic(Supplier<Map<MetricName, ? extends Metric>> metrics) {
        this.metrics = metrics;
    }

    static Traffic watch(Supplier<Map<MetricName, ? extends Metric>> metrics, Pipe pipe) {
        Traffic traffic = new Traffic(metrics);
        ScheduledExecutorService clock = Executors.newSingleThreadScheduledExecutor(task -> {
            Thread thread = new Thread(task, "traffic");
            thread.setDaemon(true);
            return thread;
        });
        clock.scheduleAtFixedRate(() -> pipe.say("traffic", "brokers", traffic.totals()), 1, 1, TimeUnit.SECONDS);
        return traffic;
    }

    /** Count the bytes of another client from now on, in addition to those of the clients before. */
    synchronized void change(Supplier<Map<MetricName, ? extends Metric>> next) {
        add(metrics.get(), before);
        metrics = next;
    }

    /** Return bytes (sent, received) by broker, over all connections. */
    private synchronized Map<String, long[]> totals() {
        Map<String, long[]> totals = new HashMap<>();
        before.forEach((broker, bytes) -> totals.put(broker, bytes.clone()));
        add(metrics.get(), totals);
        return totals;
    }

    private static void add(Map<MetricName, ? extends Metric> metrics, Map<String, long[]> totals) {
        metrics.forEach((name, metric) -> {
            int column = column(name.name());
            int broker = broker(name.tags().getOrDefault("node-id", ""));
            if (column >= 0 && broker >= 0) {
                totals.computeIfAbsent("" + broker, ignored -> new long[2])[column] += (long) (double) (Double) metric.metricValue();
            }
        });
    }

    private static int column(String name) {
        return name.equals("outgoing-byte-total") ? 0 : name.equals("incoming-byte-total") ? 1 : -1;
    }

    /** `node-3` is broker 3; `node--1` a bootstrap address; `node-2147483644` broker 3 as a coordinator. */
    static int broker(String node) {
        if (!node.startsWith("node-")) {
            return -1;
        }
        int id = Integer.parseInt(node.substring("node-".length()));
        return id > Integer.MAX_VALUE - NODES_MAX ? Integer.MAX_VALUE - id : id;
    }
}
