#!/bin/sh
# Runs a node in the foreground: kafka-server-start.sh SERVER.PROPERTIES [--override KEY=VALUE ...]
set -eu
export KAFKA_HEAP_OPTS="${KAFKA_HEAP_OPTS:--Xmx1G -Xms1G}"
# as in kafka-run-class.sh, for both versions of Log4j
log="-Dlog4j2.configurationFile=file:/opt/kafka/config/log4j2.yaml -Dlog4j.configuration=file:/opt/kafka/config/log4j.properties"
export KAFKA_LOG4J_OPTS="${KAFKA_LOG4J_OPTS:-$log}"
exec /opt/kafka/bin/kafka-run-class.sh kafka.Kafka "$@"
