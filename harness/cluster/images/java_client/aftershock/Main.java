package aftershock;

import com.fasterxml.jackson.databind.JsonNode;

/** Kafka's own producer, consumers or admin client behind the protocol of docs/EXEC.md; the first line names the op. */
public final class Main {
    private Main() {}

    public static void main(String[] arguments) {
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
            Benchmark.run(told, pipe);
        } else {
            Producing.run(told, pipe);
        }
    }

    private static void commit(JsonNode told, Pipe pipe) throws Exception {
        if (told.get("settings").path(Settings.SHARE).asBoolean()) {
            Sharing.run(told, pipe);
        } else {
            Committing.run(told, pipe);
        }
    }
}
