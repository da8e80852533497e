package aftershock;

import java.util.Comparator;
import java.util.Optional;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.replica.ClientMetadata;
import org.apache.kafka.common.replica.PartitionView;
import org.apache.kafka.common.replica.ReplicaSelector;
import org.apache.kafka.common.replica.ReplicaView;

/** A broker's replica selector (KIP-392) that ignores racks and selects the follower with the highest node id. */
public final class HighestFollower implements ReplicaSelector {
    @Override
    public Optional<ReplicaView> select(TopicPartition partition, ClientMetadata client, PartitionView view) {
        return view.replicas().stream()
                .filter(replica -> !replica.equals(view.leader()))
                .max(Comparator.comparingInt(replica -> replica.endpoint().id()));
    }
}
