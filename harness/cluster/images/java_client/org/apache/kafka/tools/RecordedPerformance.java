package org.apache.kafka.tools;

import java.io.IOException;
import java.util.Properties;
import java.util.function.Function;
import org.apache.kafka.clients.producer.KafkaProducer;

/** Kafka's ProducerPerformance with a producer of ours; in Kafka's package, because the methods are visible there only. */
public final class RecordedPerformance extends ProducerPerformance {
    private final Function<Properties, KafkaProducer<byte[], byte[]>> producers;

    private RecordedPerformance(Function<Properties, KafkaProducer<byte[], byte[]>> producers) {
        this.producers = producers;
    }

    public static void run(String[] arguments, Function<Properties, KafkaProducer<byte[], byte[]>> producers)
            throws IOException {
        new RecordedPerformance(producers).start(arguments);
    }

    @Override
    KafkaProducer<byte[], byte[]> createKafkaProducer(Properties config) {
        return producers.apply(config);
    }
}
