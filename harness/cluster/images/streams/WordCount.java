import java.time.Duration;
import java.util.Locale;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.regex.MatchResult;
import java.util.regex.Pattern;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KafkaStreams.State;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.Stores;

/**
 * Counts the words of the lines in topic FROM, and writes each word's new count to topic TO, a record for each word.
 *
 * <p>The counts are in memory and in a changelog topic; a repartition topic brings all copies of a word to one task. A
 * variable such as STREAMS_PROCESSING_GUARANTEE sets processing.guarantee. As any Streams application, it passes the
 * headers of a line on to what it derives from the line.
 */
public final class WordCount {
    private static final String PREFIX = "STREAMS_";
    private static final Pattern WORD = Pattern.compile("\\w+");
    private static final Duration CLOSE = Duration.ofSeconds(6);

    private WordCount() {}

    public static void main(String[] args) throws InterruptedException {
        Properties settings = new Properties();
        System.getenv().forEach((name, value) -> {
            if (name.startsWith(PREFIX)) {
                String key = name.substring(PREFIX.length()).toLowerCase(Locale.ROOT).replace('_', '.');
                settings.put(key, value);
            }
        });
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(System.getenv("FROM"), Consumed.with(Serdes.ByteArray(), Serdes.String()))
                .flatMapValues(line -> WORD.matcher(line.toLowerCase(Locale.ROOT)).results().map(MatchResult::group).toList())
                .groupBy((key, word) -> word, Grouped.with("words", Serdes.String(), Serdes.String()))
                .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts"))
                        .withKeySerde(Serdes.String())
                        .withValueSerde(Serdes.Long())
                        // a cache would merge several counts of a word into one output
                        .withCachingDisabled())
                .toStream()
                .mapValues(count -> count.toString())
                .to(System.getenv("TO"), Produced.with(Serdes.String(), Serdes.String()));

        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        CountDownLatch failed = new CountDownLatch(1);
        streams.setStateListener((state, before) -> {
            if (state == State.RUNNING) {
                System.out.println("running");
            } else if (state == State.ERROR) {
                failed.countDown();
            }
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(CLOSE)));
        streams.start();
        failed.await();
        System.exit(1); // for the orchestrator, which starts it again
    }
}
