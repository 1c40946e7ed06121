// What kafkajs does with a broker, checked. Prints "OK" at the end; any failure is an exception and a non-zero exit.
const assert = require('node:assert')
const { Kafka, logLevel, ConfigResourceTypes } = require('kafkajs')

async function refusal(work) {
  try {
    await work()
  } catch (error) {
    const inner = error.errors?.[0] ?? error.groups?.[0]?.error ?? error
    return inner.type || inner.cause?.type || inner.name
  }
  return 'none'
}

async function main(address) {
  const kafka = new Kafka({ clientId: 'kafkajs', brokers: [address], logLevel: logLevel.NOTHING })
  const topic = `kafkajs-${process.pid}-${Date.now()}`
  const groupId = `${topic}-group`
  const admin = kafka.admin()
  await admin.connect()

  assert.ok(await admin.createTopics({ topics: [{ topic, numPartitions: 3 }] }))
  assert.ok(!(await admin.createTopics({ topics: [{ topic, numPartitions: 3 }] })), 'it exists already')
  await admin.createPartitions({ topicPartitions: [{ topic, count: 4 }] })
  assert.strictEqual(
    await refusal(() => admin.createPartitions({ topicPartitions: [{ topic, count: 2 }] })), 'INVALID_PARTITIONS')
  const { topics } = await admin.fetchTopicMetadata({ topics: [topic] })
  assert.strictEqual(topics[0].partitions.length, 4)
  const cluster = await admin.describeCluster()
  assert.ok(cluster.clusterId && cluster.brokers.length > 0)
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
  await admin.alterConfigs({
    validateOnly: false, resources: [{ ...resource, configEntries: [{ name: 'retention.ms', value: '3600000' }] }],
  })
  const configs = await admin.describeConfigs({
    includeSynonyms: false, resources: [{ ...resource, configNames: ['retention.ms'] }],
  })
  assert.strictEqual(configs.resources[0].configEntries[0].configValue, '3600000')

  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  const messages = [...Array(200).keys()].map(number => ({ key: `k${number}`, value: `${number}` }))
  await producer.send({ topic, messages, acks: -1 })
  await producer.disconnect()
  const ends = await admin.fetchTopicOffsets(topic)
  assert.strictEqual(ends.reduce((sum, each) => sum + Number(each.high), 0), 200)

  const seen = new Set()
  const consumers = [0, 1].map(() => kafka.consumer({ groupId, sessionTimeout: 30000, maxWaitTimeInMs: 100 }))
  await new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`only ${seen.size} of 200 records`)), 60000)
    const eachMessage = async ({ message }) => {
      seen.add(message.value.toString())
      if (seen.size === 200) { clearTimeout(timer); resolve() }
    }
    const run = async consumer => {
      await consumer.connect()
      await consumer.subscribe({ topic, fromBeginning: true })
      await consumer.run({ eachMessage })
    }
    Promise.all(consumers.map(run)).catch(reject)
  })
  // Seen is not committed yet: whoever takes a partition over may have to read it again.
  const committed = async () => {
    const found = await admin.fetchOffsets({ groupId, topics: [topic] })
    return found[0].partitions.reduce((sum, each) => sum + Math.max(0, Number(each.offset)), 0)
  }
  const deadline = Date.now() + 60000
  while (await committed() !== 200) {
    assert.ok(Date.now() < deadline, `only ${await committed()} of 200 records are committed`)
    await new Promise(resolve => setTimeout(resolve, 100))
  }
  const described = await admin.describeGroups([groupId])
  assert.strictEqual(described.groups[0].protocolType, 'consumer')
  assert.strictEqual(await refusal(() => admin.deleteGroups([groupId])), 'NON_EMPTY_GROUP')
  for (const consumer of consumers) await consumer.disconnect()
  assert.ok((await admin.listGroups()).groups.some(group => group.groupId === groupId))
  assert.strictEqual(await committed(), 200)
  await admin.deleteGroups([groupId])
  assert.strictEqual(await refusal(() => admin.deleteGroups([groupId])), 'GROUP_ID_NOT_FOUND')

  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '-1' }] })
  await admin.deleteTopics({ topics: [topic] })
  assert.strictEqual(await refusal(() => admin.deleteTopics({ topics: [topic] })), 'UNKNOWN_TOPIC_OR_PARTITION')
  await admin.disconnect()
  console.log('OK: kafkajs')
}

main(process.argv[2]).then(() => process.exit(0), error => { console.error(error); process.exit(1) })
