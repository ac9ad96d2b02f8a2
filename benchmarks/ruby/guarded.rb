# frozen_string_literal: true

# No-op jobs in Ruby's Sidekiq, each with another guarantee, by middleware as large installations write it: a lock taken
# with SET NX before the push and released by its holder after the run; a hash of running jobs, asked before each run; a
# counter for each second.  See apps/guarded.py.

require "digest"
require_relative "jobs"

MOST_AT_ONCE = 20
MOST_PER_SECOND = 1_000_000
LOCK_SECONDS = 21_600

RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"

# Writes a push only if it gets the lock of its class and arguments.
class TakeLock
  def call(_worker, job, _queue, _pool)
    return yield unless job["deduplicate"]

    key = "duplicate:#{Digest::SHA256.hexdigest("#{job["class"]}:#{JSON.generate(job["args"])}")}"
    taken = Sidekiq.redis { |redis| redis.set(key, job["jid"], nx: true, ex: LOCK_SECONDS) }
    return false unless taken

    job["lock"] = key
    yield
  end
end

# Releases the lock once the job has run.
class ReleaseLock
  def call(_worker, job, _queue)
    yield
    Sidekiq.redis { |redis| redis.eval(RELEASE, keys: [job["lock"]], argv: [job["jid"]]) } if job["lock"]
  end
end

# Runs a job only if fewer than its limit run; what is over it waits in a list.
class LimitConcurrency
  def call(_worker, job, _queue)
    limit = job["concurrency_limit"]
    return yield unless limit

    running = "running:#{job["class"]}"
    if Sidekiq.redis { |redis| redis.hlen(running) } >= limit
      return Sidekiq.redis { |redis| redis.rpush("waiting:#{job["class"]}", JSON.generate(job)) }
    end
    Sidekiq.redis { |redis| redis.hset(running, job["jid"], now) }
    begin
      yield
    ensure
      Sidekiq.redis { |redis| redis.hdel(running, job["jid"]) }
    end
  end
end

# Runs a job only if its limit of starts in this second is not reached.
class LimitRate
  def call(_worker, job, _queue)
    limit = job["rate_limit"]
    return yield unless limit

    key = "rate:#{job["class"]}:#{Time.now.to_i}"
    count, = Sidekiq.redis do |redis|
      redis.pipelined do |pipeline|
        pipeline.incr(key)
        pipeline.expire(key, 10)
      end
    end
    raise "over the limit" if count > limit

    yield
  end
end

Sidekiq.configure_client { |config| config.client_middleware { |chain| chain.add TakeLock } }
Sidekiq.configure_server do |config|
  config.server_middleware do |chain|
    chain.add ReleaseLock
    chain.add LimitConcurrency
    chain.add LimitRate
  end
end

class Plain
  include Sidekiq::Job

  def perform(_number)
  end
end

class Once < Plain
  sidekiq_options "deduplicate" => true
end

class Limited < Plain
  sidekiq_options "concurrency_limit" => MOST_AT_ONCE
end

class Rated < Plain
  sidekiq_options "rate_limit" => MOST_PER_SECOND
end

class Everything < Plain
  sidekiq_options "deduplicate" => true, "concurrency_limit" => MOST_AT_ONCE, "rate_limit" => MOST_PER_SECOND
end

GUARDED = {
  "plain" => Plain, "once" => Once, "limited" => Limited, "rated" => Rated, "everything" => Everything
}.freeze
