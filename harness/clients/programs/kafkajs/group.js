'use strict';

// Members of consumer groups.

const { setTimeout: sleep } = require('node:timers/promises');
const { PartitionAssigners } = require('kafkajs');
const { complain, die } = require('./protocol');

// Return the options of the only member of a group. A member that crashed without leaving the group keeps its next one
// waiting for the end of the session, which is 30 s by default.
function aloneIn(groupId) {
  return { groupId, sessionTimeout: 10_000 };
}

// Return a consumer that calls `onJoin` before each request to join its group, with which it gives up all partitions.
function openConsumer(kafka, options, group, onJoin = () => {}) {
  const own = { ...group, ...options.consumer };
  return kafka.consumer({
    allowAutoTopicCreation: false,
    // between fetches, which may wait for 5 s by default, the consumer sends heartbeats and can stop
    maxWaitTimeInMs: 500,
    heartbeatInterval: Math.min(3_000, Math.floor((own.sessionTimeout ?? 30_000) / 3)),
    partitionAssigners: [
      (context) => {
        const assigner = PartitionAssigners.roundRobin(context);
        const protocol = (subscription) => {
          onJoin();
          return assigner.protocol(subscription);
        };
        return { ...assigner, protocol };
      },
    ],
    ...own,
  });
}

// Run a consumer, and again when KafkaJS stops it after an error that it takes for permanent, unless `consumer.restart` is
// never. A coordinator that isn't found while all brokers are down is such an error.
function keepRunning(consumer, config, { restart: restarts }, isClosing = () => false) {
  const run = () => consumer.run({ ...config, eachBatchAutoResolve: false }).catch(die);
  consumer.on(consumer.events.CRASH, async ({ payload: { error, restart } }) => {
    complain(error);
    if (!restart && restarts) {
      await sleep(1_000);
      if (!isClosing()) {
        run();
      }
    }
  });
  run();
}

module.exports = { aloneIn, keepRunning, openConsumer };
