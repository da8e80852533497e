package aftershock;

import java.io.ByteArrayOutputStream;
import java.io.FilterOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Standard error that also reports each connection to a broker that ended, and each request that timed out.
 *
 * <p>Kafka's metrics count neither by broker; its NetworkClient logs both, in the same words since Kafka 2.0.
 */
final class Connections extends FilterOutputStream {
    private static final Pattern ENDED = Pattern.compile(
            "(?:Node (-?\\d+) disconnected\\.|Disconnecting from node (-?\\d+) due to request timeout\\.)");
    private static final int LINE_MAX = 4_096;
    private final ByteArrayOutputStream line = new ByteArrayOutputStream();
    private final Pipe pipe;

    private Connections(OutputStream errors, Pipe pipe) {
        super(errors);
        this.pipe = pipe;
    }

    /** Watch what is written to standard error; call before the first class of Kafka opens its log. */
    static void watch(Pipe pipe) {
        System.setErr(new PrintStream(new Connections(System.err, pipe), true));
    }

    /** The reports of this class; none with Kafka before 4.0, whose logging does not read log4j2.properties. */
    static List<String> reports() {
        try {
            Class.forName("org.apache.logging.log4j.core.LoggerContext", false, Connections.class.getClassLoader());
            return List.of("node_disconnected", "request_timed_out");
        } catch (ClassNotFoundException older) {
            return List.of();
        }
    }

    @Override
    public void write(int octet) throws IOException {
        out.write(octet);
        if (octet == '\n') {
            report(line.toString(StandardCharsets.UTF_8));
            line.reset();
        } else if (line.size() < LINE_MAX) {
            line.write(octet);
        }
    }

    @Override
    public void write(byte[] octets, int from, int length) throws IOException {
        for (int at = from; at < from + length; at++) {
            write(octets[at]);
        }
    }

    private void report(String logged) {
        Matcher ended = ENDED.matcher(logged);
        if (ended.find()) {
            boolean timedOut = ended.group(2) != null;
            int broker = Traffic.broker("node-" + ended.group(timedOut ? 2 : 1));
            if (broker >= 0) { // not a bootstrap address
                if (timedOut) {
                    pipe.sayTimed("request_timed_out", "broker", broker);
                }
                pipe.sayTimed("node_disconnected", "broker", broker);
            }
        }
    }
}
