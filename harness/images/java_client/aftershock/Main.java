package aftershock;

import com.fasterxml.jackson.databind.JsonNode;

/** Kafka's own producer, consumer or admin client behind the protocol of docs/EXEC.md: one op, told by the first line. */
public final class Main {
    private Main() {}

    public static void main(String[] arguments) {
        Pipe pipe = new Pipe(System.in, System.out);
        System.setOut(System.err); // standard output is the pipe's alone
        try {
            run(pipe.next(), pipe);
            pipe.say("bye");
            System.exit(0);
        } catch (Exception error) {
            error.printStackTrace();
            pipe.say("died", "why", error.toString());
            System.exit(1);
        }
    }

    private static void run(JsonNode told, Pipe pipe) throws Exception {
        String op = told.get("op").asText();
        switch (op) {
            case "produce" -> Producing.run(told, pipe);
            case "consume" -> Consuming.run(told, pipe);
            case "commit" -> Committing.run(told, pipe);
            default -> throw new IllegalArgumentException("there is no op " + op);
        }
    }
}
