#!/bin/sh
# Runs a main class of Kafka: kafka-run-class.sh CLASS [ARGUMENT ...]
# The class path is the same string in training and at run time: a class archive is only valid for that string.
# As in the official image, CLASSPATH comes before the libraries: boots are slower then, without the archive.
set -eu
# Kafka 4.x logs with Log4j 2, and 3.x with Log4j 1 (reload4j); each ignores the other's property
log="-Dlog4j2.configurationFile=file:/etc/kafka/docker/tools-log4j2.yaml \
-Dlog4j.configuration=file:/etc/kafka/docker/tools-log4j.properties"
# each variable holds several flags, so the shell must split them into words
# shellcheck disable=SC2086
exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" \
  ${KAFKA_HEAP_OPTS:--Xmx256M} \
  ${KAFKA_JVM_PERFORMANCE_OPTS:-} \
  ${KAFKA_GC_LOG_OPTS:-} \
  ${KAFKA_JMX_OPTS:-} \
  -Dkafka.logs.dir=/opt/kafka/logs \
  ${KAFKA_LOG4J_OPTS:-$log} \
  -cp "${CLASSPATH:+$CLASSPATH:}/opt/kafka/libs/*" \
  ${KAFKA_OPTS:-} \
  "$@"
