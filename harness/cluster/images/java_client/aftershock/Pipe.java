package aftershock;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Orders on standard input, reports on standard output: one JSON object per line. Any thread may report.
 *
 * <p>A separate thread reads all the time: the end of input means that the worker ended, and ends the process at once;
 * an order fails at once if the queue is full.
 */
final class Pipe {
    private static final int WAITING_MAX = 4 << 20; // characters
    private static final ObjectMapper JSON = new ObjectMapper();
    private final BufferedReader input;
    private final OutputStream output;
    private final LinkedBlockingQueue<String> waiting = new LinkedBlockingQueue<>();
    private final AtomicInteger size = new AtomicInteger();

    Pipe(InputStream input, OutputStream output) {
        this.input = new BufferedReader(new InputStreamReader(input, StandardCharsets.UTF_8), 1 << 16);
        this.output = output;
        Thread reader = new Thread(this::read, "orders");
        reader.setDaemon(true);
        reader.start();
    }

    /** Return the next order, null for `close`. */
    JsonNode next() throws IOException, InterruptedException {
        String line = waiting.take();
        size.addAndGet(-line.length());
        JsonNode order = JSON.readTree(line);
        return isClose(order) ? null : order;
    }

    private void read() {
        try {
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                take(line);
            }
        } catch (IOException error) {
            error.printStackTrace();
        }
        Runtime.getRuntime().halt(1);
    }

    private void take(String line) throws IOException {
        if (size.get() + line.length() > WAITING_MAX) {
            JsonNode order = JSON.readTree(line);
            if (order.has("seq")) {
                say("failed", "seq", order.get("seq").asLong(), "error", "_QUEUE_FULL", "in_doubt", false);
                return;
            }
        }
        size.addAndGet(line.length());
        waiting.add(line);
    }

    private static boolean isClose(JsonNode order) {
        return order.get("do").asText().equals("close");
    }

    /** Write report `say`, with alternating names and values. */
    void say(String say, Object... details) {
        Map<String, Object> report = new LinkedHashMap<>();
        report.put("say", say);
        for (int at = 0; at < details.length; at += 2) {
            report.put((String) details[at], details[at + 1]);
        }
        write(report);
    }

    /** Write report `say` with the time on the host's monotonic clock, which `nanoTime` reads on Linux. */
    void sayTimed(String say, Object... details) {
        Object[] timed = Arrays.copyOf(details, details.length + 2);
        timed[details.length] = "at_ns";
        timed[details.length + 1] = System.nanoTime();
        say(say, timed);
    }

    private void write(Map<String, Object> report) {
        try {
            byte[] line = (JSON.writeValueAsString(report) + "\n").getBytes(StandardCharsets.UTF_8);
            synchronized (output) {
                output.write(line);
                output.flush();
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
