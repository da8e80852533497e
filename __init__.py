"""Aftershock breaks a Kafka cluster on purpose and says, with evidence, whether its clients kept their promises."""
