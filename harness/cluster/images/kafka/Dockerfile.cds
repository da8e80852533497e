# The same image with the class archives of its training run beside the libraries.
ARG TRAINED
FROM ${TRAINED}
COPY --chown=appuser:appuser *.jsa /opt/kafka/
