package aftershock;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.List;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.utils.AppInfoParser;

/**
 * Kafka's own producer, consumers or admin client behind the protocol of docs/EXEC.md; the first line names the op.
 *
 * <p>With the argument `pipe`, a service between two topics, which has no protocol. With the arguments `--describe SETTINGS`
 * it tells the client's version, what this version lacks, and why it refuses the settings of an arm.
 */
public final class Main {
    private Main() {}

    public static void main(String[] arguments) {
        if (List.of(arguments).equals(List.of("pipe"))) {
            pipe();
            return;
        }
        if (arguments.length == 2 && arguments[0].equals("--describe")) {
            describe(arguments[1]);
            return;
        }
        Pipe pipe = new Pipe(System.in, System.out);
        Connections.watch(pipe);
        System.setOut(System.err); // standard output is reserved for reports
        try {
            run(pipe.next(), pipe);
            pipe.say("bye");
            System.exit(0);
        } catch (Exception error) {
            die(error, pipe);
        }
    }

    private static void describe(String settings) {
        ObjectMapper json = new ObjectMapper();
        ObjectNode description = json.createObjectNode().put("version", AppInfoParser.getVersion());
        if (!ConsumerConfig.configNames().contains("group.protocol")) {
            description.putObject("lacks").put("protocol", "this version has no consumer protocol (KIP-848)");
        }
        try {
            Settings.requireKnown(json.readTree(settings));
        } catch (IOException | IllegalArgumentException refused) {
            description.put("refused", refused.getMessage());
        }
        System.out.println(description);
    }

    /** Run the pipe, whose process ends with status 1 after an error. */
    private static void pipe() {
        try {
            Piping.run();
        } catch (Exception error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(1); // an exit would wait for the hook, and the hook for this thread
        }
    }

    /** End the process at an uncaught exception of any thread. */
    static void die(Throwable error, Pipe pipe) {
        error.printStackTrace();
        pipe.say("died", "why", error.toString());
        System.exit(1);
    }

    private static void run(JsonNode told, Pipe pipe) throws Exception {
        String op = told.get("op").asText();
        switch (op) {
            case "produce" -> produce(told, pipe);
            case "consume" -> Consuming.run(told, pipe);
            case "commit" -> commit(told, pipe);
            default -> throw new IllegalArgumentException("there is no op " + op);
        }
    }

    private static void produce(JsonNode told, Pipe pipe) throws Exception {
        if (told.hasNonNull("load")) {
            benchmark(told, pipe);
        } else {
            Producing.run(told, pipe);
        }
    }

    // methods of their own, because a client of a chosen version is compiled without Benchmark and Sharing

    private static void benchmark(JsonNode told, Pipe pipe) throws Exception {
        Benchmark.run(told, pipe);
    }

    private static void share(JsonNode told, Pipe pipe) throws Exception {
        Sharing.run(told, pipe);
    }

    private static void commit(JsonNode told, Pipe pipe) throws Exception {
        if (told.get("settings").path(Settings.SHARE).asBoolean()) {
            share(told, pipe);
        } else {
            Committing.run(told, pipe);
        }
    }
}
