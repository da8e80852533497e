package aftershock;

import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.common.protocol.Errors;

/** An exception of Kafka's client under the name that its error code goes by. */
final class Failure {
    private Failure() {}

    static String nameOf(Throwable error) {
        boolean wrapped = error instanceof CompletionException || error instanceof ExecutionException;
        return Errors.forException(wrapped && error.getCause() != null ? error.getCause() : error).name();
    }
}
