package aftershock;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConsumerGroupOffsetsOptions;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;

/** Commits offsets of groups without members: in order within a group, concurrently across groups. */
final class Committing {
    private final Admin admin;
    private final String topic;
    private final long deadlineMs;
    private final Map<String, CompletionStage<Void>> latest = new HashMap<>();
    private final Pipe pipe;

    private Committing(Admin admin, JsonNode told, Pipe pipe) {
        this.admin = admin;
        this.topic = told.get("topic").asText();
        this.deadlineMs = told.get("deadline_ms").asLong();
        this.pipe = pipe;
    }

    /** Run until `close`, and until every commit is reported. */
    static void run(JsonNode told, Pipe pipe) throws IOException, InterruptedException, ExecutionException {
        try (Admin admin = Admin.create(Settings.ofAdmin(told))) {
            Committing committing = new Committing(admin, told, pipe);
            admin.describeCluster().nodes().get();
            Traffic.watch(admin::metrics, pipe);
            pipe.say("ready", "reports", Connections.reports());
            for (JsonNode order = pipe.next(); order != null; order = pipe.next()) {
                committing.order(order);
            }
            for (CompletionStage<Void> last : committing.latest.values()) {
                last.toCompletableFuture().get();
            }
        }
    }

    /** Start a commit when the previous commit of the group is over: Admin may reorder two commits when it retries. */
    private void order(JsonNode order) {
        long untilNs = System.nanoTime() + deadlineMs * 1_000_000;
        latest.compute(order.get("group").asText(), (group, before) ->
                (before == null ? CompletableFuture.<Void>completedFuture(null) : before)
                        .thenCompose(done -> commit(order, untilNs))
                        .handle((done, error) -> report(order, error)));
    }

    private CompletionStage<Void> commit(JsonNode order, long untilNs) {
        long leftMs = (untilNs - System.nanoTime()) / 1_000_000;
        if (leftMs <= 0) {
            return CompletableFuture.failedFuture(new TimeoutException("its turn came too late"));
        }
        TopicPartition partition = new TopicPartition(topic, order.get("partition").asInt());
        OffsetAndMetadata offset = new OffsetAndMetadata(order.get("offset").asLong());
        AlterConsumerGroupOffsetsOptions limit = new AlterConsumerGroupOffsetsOptions().timeoutMs((int) leftMs);
        return admin.alterConsumerGroupOffsets(order.get("group").asText(), Map.of(partition, offset), limit)
                .partitionResult(partition)
                .toCompletionStage();
    }

    private Void report(JsonNode order, Throwable error) {
        long seq = order.get("seq").asLong();
        if (error == null) {
            pipe.say("acked", "seq", seq);
        } else {
            pipe.say("failed", "seq", seq, "error", Failure.nameOf(error));
        }
        return null;
    }
}
