import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.Supplier;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;

/**
 * Assignors of Kafka's Java client, for tests: one case on each line of the standard input, one assignment on each line of
 * the standard output.
 *
 * <p>A case is {@code {"assignor": NAME, "topics": {NAME: PARTITIONS}, "racks": [RACK], "members": [{"id": ID,
 * "instance": ID or null, "subscription": BASE64}]}}; each rack has a node with a replica of every partition. An answer is
 * {@code {"order": [ID], "assignment": {ID: BASE64}}}, with the order in which the assignor goes through the members, or has
 * an {@code "error"} in place of the assignment.
 */
public final class KafkaAssignors {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<String, Supplier<ConsumerPartitionAssignor>> ASSIGNORS = Map.of(
            "range", RangeAssignor::new,
            "roundrobin", RoundRobinAssignor::new,
            "sticky", StickyAssignor::new,
            "cooperative-sticky", CooperativeStickyAssignor::new);

    private KafkaAssignors() {}

    public static void main(String[] arguments) throws IOException {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            out.println(answer(JSON.readTree(line)));
        }
        out.flush();
    }

    private static ObjectNode answer(JsonNode wanted) {
        // the leader of a group puts the subscriptions into a HashMap, too: ConsumerCoordinator.onLeaderElected
        Map<String, Subscription> subscriptions = new HashMap<>();
        for (JsonNode member : wanted.get("members")) {
            byte[] encoded = Base64.getDecoder().decode(member.get("subscription").asText());
            Subscription subscription = ConsumerProtocol.deserializeSubscription(ByteBuffer.wrap(encoded));
            subscription.setGroupInstanceId(Optional.ofNullable(member.get("instance").textValue()));
            subscriptions.put(member.get("id").asText(), subscription);
        }
        ObjectNode answer = JSON.createObjectNode();
        subscriptions.keySet().forEach(answer.putArray("order")::add);
        ConsumerPartitionAssignor assignor = ASSIGNORS.get(wanted.get("assignor").asText()).get();
        try {
            Map<String, Assignment> assignments =
                    assignor.assign(cluster(wanted), new GroupSubscription(subscriptions)).groupAssignment();
            ObjectNode assignment = answer.putObject("assignment");
            assignments.forEach((id, assigned) -> assignment.put(id, encode(ConsumerProtocol.serializeAssignment(assigned))));
        } catch (RuntimeException error) {
            answer.put("error", error.toString());
        }
        return answer;
    }

    private static Cluster cluster(JsonNode wanted) {
        List<Node> nodes = new ArrayList<>();
        wanted.get("racks").forEach(rack -> nodes.add(new Node(nodes.size(), "host", 9092, rack.asText())));
        Node[] replicas = nodes.toArray(new Node[0]);
        List<PartitionInfo> partitions = new ArrayList<>();
        wanted.get("topics").properties().forEach(topic -> {
            for (int number = 0; number < topic.getValue().asInt(); number++) {
                partitions.add(new PartitionInfo(topic.getKey(), number, replicas[0], replicas, replicas));
            }
        });
        return new Cluster("cluster", nodes, partitions, Set.of(), Set.of());
    }

    private static String encode(ByteBuffer buffer) {
        byte[] encoded = new byte[buffer.remaining()];
        buffer.get(encoded);
        return Base64.getEncoder().encodeToString(encoded);
    }
}
