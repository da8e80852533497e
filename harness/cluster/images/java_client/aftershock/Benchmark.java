package aftershock;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.ByteArrayOutputStream;
import java.io.FilterOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.tools.RecordedPerformance;

/**
 * Kafka's ProducerPerformance, which drives its own load with its own statistic; reports each record beside it.
 *
 * <p>The tool's payload is replaced by one of the same size, with a mark in a header, so that the records can be found in
 * the log. Reports are collected and written by a thread of their own, so that the tool's threads do not wait for them.
 */
final class Benchmark {
    private static final long REPORT_EVERY_MS = 50;
    private final JsonNode told;
    private final JsonNode load;
    private final Pipe pipe;
    private final byte[] filler;
    private final Object reporting = new Object();
    private List<Long> sent = new ArrayList<>();
    private List<long[]> acked = new ArrayList<>();
    private List<Object[]> failed = new ArrayList<>();
    private long reported; // records whose sending is reported

    private Benchmark(JsonNode told, Pipe pipe) throws IOException {
        this.told = told;
        this.load = told.get("load");
        this.pipe = pipe;
        this.filler = load.get("filler").binaryValue();
    }

    /** Run the tool to its end, and wait for `close`. */
    static void run(JsonNode told, Pipe pipe) throws IOException, InterruptedException {
        Benchmark benchmark = new Benchmark(told, pipe);
        LastLine lines = new LastLine(System.err);
        System.setOut(new PrintStream(lines, true));
        RecordedPerformance.run(benchmark.arguments(), benchmark::producer);
        benchmark.report();
        pipe.say("summary", "text", lines.last);
        if (pipe.next() != null) {
            throw new IllegalStateException("an order after `go` that is not `close`");
        }
    }

    /** The tool's command line. */
    private String[] arguments() {
        List<String> words = new ArrayList<>(List.of("--topic", told.get("topic").asText()));
        words.addAll(List.of("--num-records", load.get("records").asText()));
        if (load.get("warmup_records").asLong() > 0) { // an option since Kafka 4.2
            words.addAll(List.of("--warmup-records", load.get("warmup_records").asText()));
        }
        words.addAll(List.of("--record-size", load.get("size_bytes").asText()));
        double perS = 1e6 * load.get("period_us").get(1).asLong() / load.get("period_us").get(0).asLong();
        words.addAll(List.of("--throughput", String.valueOf(perS), "--producer-props"));
        Settings.ofProducer(told).forEach((name, value) -> words.add(name + "=" + value));
        return words.toArray(new String[0]);
    }

    /** Create the tool's producer; the tool starts its clock when this method returns, at the time that `go` names. */
    private KafkaProducer<byte[], byte[]> producer(Properties config) {
        try {
            Recorded producer = new Recorded(config);
            Producing.awaitLeaders(producer, told.get("topic").asText(), told.get("partitions").asInt());
            Traffic.watch(producer::metrics, pipe);
            pipe.say("ready", "reports", Connections.reports());
            JsonNode go = pipe.next();
            if (go == null) {
                throw new IllegalStateException("`close` before `go`");
            }
            producer.begin(go.get("start_us").asLong());
            TimeUnit.NANOSECONDS.sleep(go.get("start_ns").asLong() - System.nanoTime());
            return producer;
        } catch (IOException | InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    private void keepReporting() {
        try {
            while (true) {
                Thread.sleep(REPORT_EVERY_MS);
                report();
            }
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }

    private void report() {
        synchronized (reporting) { // not the lock that the tool's threads need
            List<Long> newlySent;
            List<long[]> newlyAcked;
            List<Object[]> newlyFailed;
            synchronized (this) {
                newlySent = sent;
                newlyAcked = acked;
                newlyFailed = failed;
                sent = new ArrayList<>();
                acked = new ArrayList<>();
                failed = new ArrayList<>();
            }
            if (!newlySent.isEmpty()) {
                pipe.say("sent", "seq", reported, "at_ns", newlySent);
                reported += newlySent.size();
            }
            if (!newlyAcked.isEmpty()) {
                pipe.say("acked_all", "rows", newlyAcked);
            }
            for (Object[] row : newlyFailed) {
                pipe.say("failed", "seq", row[0], "error", row[1]);
            }
        }
    }

    private synchronized void sent(long atNs) {
        sent.add(atNs);
    }

    private synchronized void ended(long seq, RecordMetadata where, Exception error) {
        if (error == null) {
            acked.add(new long[] {seq, System.nanoTime(), where.partition(), where.offset()});
        } else {
            failed.add(new Object[] {seq, Failure.nameOf(error)});
        }
    }

    private final class Recorded extends KafkaProducer<byte[], byte[]> {
        private final int sizeBytes = load.get("size_bytes").asInt();
        private final long upUs = load.get("period_us").get(0).asLong();
        private final long down = load.get("period_us").get(1).asLong();
        private long startUs;
        private long next;

        Recorded(Properties config) {
            super(config);
        }

        void begin(long atUs) {
            startUs = atUs;
            Thread reports = new Thread(Benchmark.this::keepReporting, "reports");
            reports.setDaemon(true);
            reports.start();
        }

        @Override
        public Future<RecordMetadata> send(ProducerRecord<byte[], byte[]> record, Callback callback) {
            long seq = next++;
            sent(System.nanoTime());
            int from = (int) (seq % (filler.length - sizeBytes));
            byte[] value = Arrays.copyOfRange(filler, from, from + sizeBytes);
            ProducerRecord<byte[], byte[]> marked = new ProducerRecord<>(record.topic(), value);
            ByteBuffer mark = ByteBuffer.allocate(Integer.BYTES + 2 * Long.BYTES);
            mark.putInt(load.get("producer_id").asInt()).putLong(seq).putLong(startUs + seq * upUs / down);
            marked.headers().add("aftershock", mark.array());
            return super.send(marked, (where, error) -> {
                ended(seq, where, error);
                callback.onCompletion(where, error);
            });
        }
    }

    /** Passes text on, and keeps the last line, with which the tool ends. */
    private static final class LastLine extends FilterOutputStream {
        private final ByteArrayOutputStream line = new ByteArrayOutputStream();
        private String last = "";

        LastLine(OutputStream out) {
            super(out);
        }

        @Override
        public void write(int octet) throws IOException {
            out.write(octet);
            if (octet != '\n') {
                line.write(octet);
            } else {
                last = line.toString(StandardCharsets.UTF_8);
                line.reset();
            }
        }
    }
}
