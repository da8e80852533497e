package aftershock;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.producer.ProducerConfig;

/** The worker's settings as Kafka's properties. An arm's settings are for all its ops; each op selects its own. */
final class Settings {
    // settings that are not those of Kafka's clients
    static final String SHARE = "share";
    static final String POLL = "poll.timeout.ms";
    private static final Set<String> BENCHMARK = Set.of("num-records", "warmup-records");
    private static final int REQUEST_TIMEOUT_MS = 30_000; // Kafka's default
    private static final int REQUEST_TIMEOUT_MIN_MS = 2_000; // a fetch without records takes half a second

    private static final Map<String, String> ASSIGNORS = Map.of(
            "range", RangeAssignor.class.getName(),
            "roundrobin", RoundRobinAssignor.class.getName(),
            "sticky", StickyAssignor.class.getName(),
            "cooperative-sticky", CooperativeStickyAssignor.class.getName());

    private Settings() {}

    static Map<String, Object> ofProducer(JsonNode told) {
        Map<String, Object> config = common(told);
        long lingerMs = Math.round(told.get("linger_ms").asDouble());
        int deadlineMs = told.get("deadline_ms").asInt();
        config.put("max.block.ms", deadlineMs); // a record that waits for buffer space has the same deadline
        if (told.hasNonNull("transaction")) {
            JsonNode transaction = told.get("transaction");
            config.put("transactional.id", transaction.get("id").asText());
            config.put("transaction.timeout.ms", transaction.get("timeout_ms").asInt());
            deadlineMs = Math.min(deadlineMs, transaction.get("timeout_ms").asInt()); // of its records
        }
        config.put("acks", told.get("acks").asText());
        config.put("enable.idempotence", told.get("idempotence").asBoolean());
        config.put("linger.ms", lingerMs);
        config.put("delivery.timeout.ms", deadlineMs);
        // KafkaProducer refuses a delivery timeout shorter than linger and one request together
        config.put("request.timeout.ms", (int) Math.max(1, Math.min(REQUEST_TIMEOUT_MS, deadlineMs - lingerMs)));
        return with(told, config, ProducerConfig.configNames());
    }

    static Map<String, Object> ofConsumer(JsonNode told) {
        Map<String, Object> config = common(told);
        boolean member = told.hasNonNull("group");
        if (member) {
            config.put("group.id", told.get("group").asText());
        }
        if (told.hasNonNull("client_rack")) {
            config.put("client.rack", told.get("client_rack").asText());
        }
        if (told.hasNonNull("instance_id")) {
            config.put("group.instance.id", told.get("instance_id").asText());
        }
        if (told.hasNonNull("group_protocol")) {
            config.put("group.protocol", told.get("group_protocol").asText());
        }
        if (told.hasNonNull("assignor")) {
            String assignor = told.get("assignor").asText();
            if (told.get("group_protocol").asText().equals("consumer")) {
                config.put("group.remote.assignor", assignor);
            } else {
                config.put("partition.assignment.strategy", ASSIGNORS.get(assignor));
            }
        }
        config.put("enable.auto.commit", member && !told.hasNonNull("commit"));
        config.put("auto.offset.reset", told.get("from").asText());
        if (told.hasNonNull("isolation")) {
            config.put("isolation.level", told.get("isolation").asText());
        }
        return with(told, config, ConsumerConfig.configNames());
    }

    static Map<String, Object> ofShareConsumer(JsonNode told, String group, int number) {
        Map<String, Object> config = common(told);
        int deadlineMs = told.get("deadline_ms").asInt();
        config.put("client.id", told.get("client_id").asText() + "-" + number); // each client has its own metrics
        config.put("group.id", group);
        config.put("share.acknowledgement.mode", "explicit");
        config.put("share.acquire.mode", "record_limit"); // the client acquires only records that `poll` returns
        config.put("max.poll.records", 10);
        config.put("default.api.timeout.ms", deadlineMs);
        config.put("request.timeout.ms", Math.max(REQUEST_TIMEOUT_MIN_MS, Math.min(REQUEST_TIMEOUT_MS, deadlineMs)));
        return with(told, config, ConsumerConfig.configNames());
    }

    static Map<String, Object> ofAdmin(JsonNode told) {
        return with(told, common(told), AdminClientConfig.configNames());
    }

    private static Map<String, Object> common(JsonNode told) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", told.get("bootstrap").asText());
        config.put("client.id", told.get("client_id").asText());
        return config;
    }

    private static Map<String, Object> with(JsonNode told, Map<String, Object> config, Set<String> names) {
        JsonNode settings = told.get("settings");
        requireKnown(settings);
        settings.properties().forEach(setting -> {
            if (names.contains(setting.getKey())) {
                config.put(setting.getKey(), setting.getValue().asText());
            }
        });
        return config;
    }

    static void requireKnown(JsonNode settings) {
        settings.properties().forEach(setting -> {
            if (!known(setting.getKey())) {
                throw new IllegalArgumentException("Kafka's clients have no setting " + setting.getKey());
            }
        });
    }

    private static boolean known(String name) {
        return name.equals(SHARE)
                || name.equals(POLL)
                || BENCHMARK.contains(name)
                || ProducerConfig.configNames().contains(name)
                || ConsumerConfig.configNames().contains(name)
                || AdminClientConfig.configNames().contains(name);
    }
}
