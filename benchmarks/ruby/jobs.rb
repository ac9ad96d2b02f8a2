# frozen_string_literal: true

# The jobs in Ruby's Sidekiq: `sidekiq -r jobs.rb`, and what pusher.rb enqueues.  See apps/jobs.py, apps/real.py and
# ledger.py.

require "json"
require "logger"
require "sidekiq"

# The faster of the two drivers, where it is installed (Debian: ruby-hiredis).
begin
  require "redis/connection/hiredis"
  DRIVER = :hiredis
rescue LoadError
  DRIVER = :ruby
end

# Without it redis-rb 4.8 prints a warning at each push of Sidekiq 6.4, which costs it a fifth of its rate.
Redis.sadd_returns_boolean = false if Redis.respond_to?(:sadd_returns_boolean=)

LEDGER = File.open(ENV.fetch("BENCH_LEDGER"), File::WRONLY | File::APPEND | File::CREAT)

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC)
end

def note(event, *facts)
  LEDGER.syswrite("#{[event, Process.pid, now, *facts].join(" ")}\n")
end

Sidekiq.configure_server do |config|
  config.redis = {driver: DRIVER}
  config.logger.level = (ENV["BENCH_LOG_LEVEL"] == "info") ? Logger::INFO : Logger::WARN
end

Sidekiq.configure_client do |config|
  config.redis = {driver: DRIVER}
end

class Noop
  include Sidekiq::Job

  def perform
  end
end

class Mark
  include Sidekiq::Job

  def perform(seconds = 0)
    note("mark")
    sleep(seconds) if seconds.positive?
  end
end

class Sleep
  include Sidekiq::Job

  def perform(seconds)
    sleep(seconds)
  end
end

class Stamp
  include Sidekiq::Job

  def perform(sent)
    note("stamp", sent)
  end
end

class Tick
  include Sidekiq::Job

  def perform(number, seconds)
    note("start", number)
    sleep(seconds)
    note("end", number)
  end
end

STEPS = 300 # of the loop of a usual job

# What a pool or a metric keeps of its waits, under one lock.
WAITS = {lock: Mutex.new, seconds: 0.0}

class Lock
  include Sidekiq::Job

  def perform
    began = now
    WAITS[:lock].synchronize { WAITS[:seconds] += now - began }
  end
end

# A counter as the metric libraries have it: a hash under a lock.
class Counter
  def initialize
    @lock = Mutex.new
    @values = Hash.new(0.0)
  end

  def increment(labels = {})
    @lock.synchronize { @values[labels] += 1.0 }
  end
end

ORDERS = Counter.new
LOG = Logger.new(File.open("usual.log", File::WRONLY | File::APPEND | File::CREAT).tap { |file| file.sync = true })

class Usual
  include Sidekiq::Job

  def perform(text)
    order = JSON.parse(text)
    ORDERS.increment
    LOG.info("order #{order["id"]} of #{order["customer"]}")
    total = 0
    (0...STEPS).each { |number| total += number * number % 7 }
    raise "no total" if total.zero?
  end
end

class MarkLock < Lock
  def perform
    note("mark")
    super
  end
end

class MarkUsual < Usual
  def perform(text)
    note("mark")
    super
  end
end
