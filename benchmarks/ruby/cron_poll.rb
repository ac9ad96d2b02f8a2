# frozen_string_literal: true

# A poll of sidekiq-cron's entries that are all due: `ruby cron_poll.rb URL ENTRIES`.
#
# Adds the entries, prints `ready`, waits for a line, does what its poller does at each interval, and prints what that
# took as JSON.

require "json"
require "sidekiq"
require "sidekiq-cron"

url, count = ARGV
Sidekiq.logger = Logger.new($stderr, level: Logger::ERROR)
Redis.silence_deprecations = true
Sidekiq.configure_client { |config| config.redis = {url: url} }

class Tick
  include Sidekiq::Worker
  sidekiq_options queue: "cron"
end

count.to_i.times do |number|
  Sidekiq::Cron::Job.create("name" => "entry #{number}", "cron" => "* * * * *", "class" => "Tick", "args" => [number])
end
puts "ready"
$stdout.flush
$stdin.gets
due = Time.at((Time.now.to_i / 60 + 1) * 60 + 1).utc # the next tick: that of the creation counts as enqueued
since = Process.clock_gettime(Process::CLOCK_MONOTONIC)
cpu = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
Sidekiq::Cron::Job.all.each { |job| job.test_and_enque_for_time!(due) }
seconds = Process.clock_gettime(Process::CLOCK_MONOTONIC) - since
cpu = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) - cpu
puts JSON.generate("seconds" => seconds, "cpu" => cpu, "jobs" => Sidekiq::Queue.new("cron").size)
