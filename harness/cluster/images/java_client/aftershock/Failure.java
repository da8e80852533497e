package aftershock;

import org.apache.kafka.common.protocol.Errors;

/** An exception of Kafka's client, by the name of its error code. */
final class Failure {
    private Failure() {}

    /** Return the name of the error, or of its cause if Kafka has no code for an exception around it. */
    static String nameOf(Throwable error) {
        Errors known = Errors.forException(error);
        boolean wraps = known == Errors.UNKNOWN_SERVER_ERROR && error.getCause() != null;
        return wraps ? nameOf(error.getCause()) : known.name();
    }
}
