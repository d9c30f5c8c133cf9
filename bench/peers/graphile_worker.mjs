// Graphile Worker. The batched rows use the settings of its documented benchmark: 24 concurrent
// jobs, a pool of 25, localQueue 500, completion batched without delay. The rows without a local
// queue fetch and complete single jobs. add_job notifies, and PostgreSQL serializes commits that
// notify, which bounds the rows that add one by one.
import { KEYS, key, load, main } from './common.mjs'

process.env.NO_LOG_SUCCESS = '1' // do not measure a log line per job
const { Logger, makeWorkerUtils, run } = load('graphile-worker')
const { Pool } = load('pg')

const batched = { batch: 64, producers: 4, jobs: 24, localQueue: 500 }
const single = { batch: 1, producers: 64, jobs: 24 }
const rows = [
  { what: 'add_jobs x64, local queue, 256 in flight', ...batched, inFlight: 256 },
  { what: 'add_jobs x500, local queue, 5000 in flight', ...batched, batch: 500, inFlight: 5000 },
  { what: 'add_jobs x64, no local queue, 256 in flight', ...batched, localQueue: 0, inFlight: 256 },
  { what: 'add_job one by one, no local queue, 256 in flight', ...single, inFlight: 256 },
  { what: `add_jobs x64, local queue, ${KEYS} named queues, 256 in flight`, ...batched, named: true, inFlight: 256 },
  { what: `add_jobs x500, local queue, ${KEYS} named queues, 5000 in flight`, ...batched, batch: 500, named: true, inFlight: 5000 },
  { what: `add_jobs x64, no local queue, ${KEYS} named queues, 256 in flight`, ...batched, localQueue: 0, named: true, inFlight: 256 },
  { what: `add_job one by one, no local queue, ${KEYS} named queues, 256 in flight`, ...single, named: true, inFlight: 256 },
]

const logger = new Logger(() => (level, message) => {
  if (level === 'error') console.error(`# ${message}`)
})

function connect(url, max) {
  const pool = new Pool({ connectionString: url, max })
  const failed = (error) => console.error(`# ${error.message}`)
  pool.on('error', failed)
  pool.on('connect', (client) => client.on('error', failed))
  return pool
}

// Concurrent adds to several queues can deadlock; PostgreSQL then aborts one of them.
async function retryDeadlocks(add) {
  for (;;) {
    try {
      return await add()
    } catch (error) {
      if (error.code !== '40P01') throw error
      console.error('# add_jobs was retried after a deadlock')
    }
  }
}

async function open(row, url) {
  const pool = connect(url, row.producers)
  const utils = await makeWorkerUtils({ pgPool: pool, logger })
  const spec = () => (row.named ? { queueName: key() } : {})
  return {
    insert: (count) =>
      count === 1
        ? utils.addJob('noop', {}, spec())
        : retryDeadlocks(() => utils.addJobs(Array.from({ length: count }, () => ({ identifier: 'noop', payload: {}, ...spec() })))),
    close: async () => {
      await utils.release()
      await pool.end()
    },
  }
}

async function consume(row, url, ran) {
  const pool = connect(url, row.jobs + 1)
  const worker = { concurrentJobs: row.jobs, maxPoolSize: row.jobs + 1, pollInterval: 100 }
  if (row.localQueue) {
    Object.assign(worker, { localQueue: { size: row.localQueue }, completeJobBatchDelay: 0, failJobBatchDelay: 0 })
  }
  const utils = await makeWorkerUtils({ pgPool: pool, logger })
  await utils.migrate()
  await pool.query('truncate graphile_worker._private_jobs, graphile_worker._private_job_queues')
  if (row.named) { // Create the queues up front, as in a service that has run for a while.
    const names = Array.from({ length: KEYS }, (_, n) => 'r' + n)
    await utils.addJobs(names.map((queueName) => ({ identifier: 'noop', payload: {}, queueName })))
    await pool.query('truncate graphile_worker._private_jobs')
  }
  await utils.release()
  const runner = await run({
    pgPool: pool,
    logger,
    noHandleSignals: true,
    preset: { worker },
    taskList: { noop: async () => ran(1) },
    parsedCronItems: [],
  })
  return {
    // A completed job is a deleted row; a failed one stays.
    drained: async () =>
      (await pool.query('select not exists (select from graphile_worker._private_jobs) as none')).rows[0].none,
    close: async () => {
      await runner.stop()
      await pool.end()
    },
  }
}

await main(import.meta.url, 'graphile-worker', rows, open, consume)
