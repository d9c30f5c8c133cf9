"""procrastinate. A worker fetches one job at a time, so several worker processes run several workers
each; the producer is this process. Usage: URL SECONDS [ONLY]."""

import asyncio
import logging
import multiprocessing
import random
import signal
import sys
import time

import procrastinate
import psycopg

KEYS = 1000
WORKERS = 2
CONCURRENCY = 128  # per process: 256 in total
FETCHERS = 4  # workers per process, which share its connections

ROWS = [
    dict(what="defer one by one, 256 in flight", producers=32, batch=1, lock=False),
    dict(what="batch_defer x64, 256 in flight", producers=4, batch=64, lock=False),
    dict(what=f"defer one by one, lock= by {KEYS} keys, 256 in flight", producers=32, batch=1, lock=True),
]
IN_FLIGHT = 256


def application(url, connections):
    app = procrastinate.App(
        connector=procrastinate.PsycopgConnector(conninfo=url, min_size=1, max_size=connections)
    )
    return app


def work(url, done, slot):
    """A process with FETCHERS workers; done[slot] counts what they ran."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable(logging.CRITICAL)
    app = application(url, 24)

    @app.task(name="noop")
    async def noop():
        done[slot] += 1

    async def run():
        async with app.open_async():
            await asyncio.gather(*(
                app.run_worker_async(
                    name=f"{slot}.{n}",
                    concurrency=CONCURRENCY // FETCHERS,
                    fetch_job_polling_interval=0.1,
                    install_signal_handlers=False,
                )
                for n in range(FETCHERS)
            ))

    asyncio.run(run())


async def produce(url, row, seconds, done):
    app = application(url, row["producers"])

    @app.task(name="noop")
    async def noop():
        pass

    reserved = inserted = 0
    stop = False

    async def loop():
        nonlocal reserved, inserted
        batch = row["batch"]
        while not stop:
            if reserved + batch - sum(done) > IN_FLIGHT:
                await asyncio.sleep(0.002)
                continue
            reserved += batch
            if row["lock"]:
                await noop.configure(lock=f"r{random.randrange(KEYS)}").defer_async()
            elif batch == 1:
                await noop.defer_async()
            else:
                await noop.batch_defer_async(*({} for _ in range(batch)))
            inserted += batch

    async with app.open_async():
        loops = asyncio.gather(*(loop() for _ in range(row["producers"])))
        await asyncio.sleep(1)  # warm up connections, plans and caches
        start, before = time.monotonic(), sum(done)
        await asyncio.sleep(seconds)
        rate = (sum(done) - before) / (time.monotonic() - start)
        stop = True
        await loops
    return rate, inserted


def measure(url, row, seconds):
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("truncate procrastinate_jobs, procrastinate_events restart identity cascade")
    done = multiprocessing.RawArray("q", WORKERS)
    workers = [multiprocessing.Process(target=work, args=(url, done, n)) for n in range(WORKERS)]
    for worker in workers:
        worker.start()
    try:
        time.sleep(1)
        rate, inserted = asyncio.run(produce(url, row, seconds, done))
        end = time.monotonic()
        with psycopg.connect(url, autocommit=True) as db:
            count = "select count(*) from procrastinate_jobs where status = 'succeeded'"
            while db.execute(count).fetchone()[0] != inserted:
                if time.monotonic() - end > 60:
                    raise TimeoutError("the drain took over 60 s")
                time.sleep(0.05)
        tail = time.monotonic() - end
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()
    print(f"procrastinate\t{row['what']}\t{rate:.0f}", flush=True)
    print(f"# {inserted} jobs in all, every one completed, {tail:.1f} s after the last insert", file=sys.stderr)


def main():
    if len(sys.argv) < 3:
        sys.exit("usage: procrastinate URL SECONDS [ONLY]")
    url, seconds, only = sys.argv[1], float(sys.argv[2]), (sys.argv[3:] or [""])[0]
    logging.disable(logging.CRITICAL)
    with psycopg.connect(url, autocommit=True) as db:
        fresh = db.execute("select to_regclass('procrastinate_jobs') is null").fetchone()[0]
    if fresh:
        async def schema():
            async with application(url, 2).open_async() as app:
                await app.schema_manager.apply_schema_async()
        asyncio.run(schema())
    for row in ROWS:
        if only in row["what"]:
            measure(url, row, seconds)


if __name__ == "__main__":
    main()
