'use strict';

const { setTimeout: sleep } = require('node:timers/promises');
const { awaitLeaders, open } = require('./connection');
const { aloneIn, keepRunning, openConsumer } = require('./group');
const {
  acked,
  awaitReports,
  begin,
  complain,
  die,
  failed,
  isPending,
  nameOf,
  ordersUntilClose,
  persist,
  say,
  within,
} = require('./protocol');

// Only member of a group, which reads nothing, and commits the orders of the group one by one.
//
// KafkaJS commits as a member of a group only. Its `admin.setOffsets` joins the group, too, and leaves it after each
// commit, which takes five seconds.
class Committer {
  constructor(kafka, options, group, topic) {
    this.topic = topic;
    this.consumer = openConsumer(kafka, options, aloneIn(group));
    this.turn = Promise.resolve();
    this.isAccepted = false;
    this.consumer.on(this.consumer.events.COMMIT_OFFSETS, () => {
      this.isAccepted = true;
    });
    this.joined = new Promise((resolve) => {
      this.consumer.on(this.consumer.events.GROUP_JOIN, () => {
        this.consumer.pause([{ topic }]);
        resolve();
      });
    });
  }

  async start() {
    await persist(() => this.consumer.connect());
    await persist(() => this.consumer.subscribe({ topics: [this.topic] }));
    keepRunning(this.consumer, { autoCommit: false, eachBatch: async () => {} }, { restart: true });
    await this.joined;
  }

  add(order) {
    this.turn = this.turn.then(() => this.commit(order)).catch(die);
  }

  async commit(order) {
    const place = { topic: this.topic, partition: order.partition, offset: String(order.offset) };
    while (isPending(order)) {
      order.handed = true;
      this.isAccepted = false;
      try {
        await this.consumer.commitOffsets([place]);
      } catch (error) {
        complain(error);
        if (nameOf(error).endsWith('_AUTHORIZATION_FAILED')) {
          failed(order, nameOf(error));
        }
      }
      // `commitOffsets` returns without an error, too, while the consumer does not run
      if (this.isAccepted) {
        acked(order);
      } else {
        await sleep(100);
      }
    }
  }
}

async function commit(start, options) {
  const kafka = open(start, options);
  await awaitLeaders(kafka, start.topics);
  const committers = new Map(start.groups.map((group) => [group, new Committer(kafka, options, group, start.topic)]));
  await Promise.all([...committers.values()].map((committer) => committer.start()));
  say('ready');
  for await (const order of ordersUntilClose()) {
    begin(order, start.deadline_ms);
    committers.get(order.group).add(order);
  }
  await awaitReports();
  await within(3_000, () => Promise.all([...committers.values()].map(({ consumer }) => consumer.stop())));
}

module.exports = { commit };
