# frozen_string_literal: true

# Enqueues Sidekiq jobs as it is told, a JSON line for a JSON line.  pusher.py says what the lines are.
# `pusher.rb guarded` also knows the jobs of guarded.rb, and gives each push of them a number of its own.

require "json"
require_relative "jobs"
require_relative "guarded" if ARGV[0] == "guarded"

BULK = 1_000 # jobs in one push_bulk
JOBS = {
  "noop" => Noop, "mark" => Mark, "sleep" => Sleep, "stamp" => Stamp, "tick" => Tick,
  "lock" => Lock, "mark_lock" => MarkLock, "usual" => Usual, "mark_usual" => MarkUsual
}.merge(defined?(GUARDED) ? GUARDED : {}).freeze
NUMBERS = (0..).each

def numbered(job, arguments)
  (defined?(GUARDED) && GUARDED.key?(job)) ? [NUMBERS.next] : arguments
end

def timed
  began = now
  yield
  now - began
end

def push(job, arguments, count)
  timed { count.times { JOBS.fetch(job).perform_async(*numbered(job, arguments)) } }
end

def push_bulk(job, arguments, count)
  timed do
    0.step(count - 1, BULK) do |done|
      lists = Array.new([BULK, count - done].min) { numbered(job, arguments) }
      Sidekiq::Client.push_bulk("class" => JOBS.fetch(job), "args" => lists)
    end
  end
end

def stamp
  Stamp.perform_async(now)
  nil
end

def answer(value)
  puts JSON.generate(value)
  $stdout.flush
end

answer("#{Sidekiq::VERSION}, Ruby #{RUBY_VERSION}, redis-rb #{Redis::VERSION} with driver #{DRIVER}")
$stdin.each_line do |line|
  verb, *arguments = JSON.parse(line)
  answer(send(verb, *arguments))
end
