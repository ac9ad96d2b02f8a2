# frozen_string_literal: true

# A real Sidekiq server beside kiqcluster; its jobs are those of tests/apps/mixed.py, and write to the same ledger.

require_relative "quick"
require_relative "payloads"

LEDGER = File.open(ENV.fetch("CHAOS_LEDGER"), File::WRONLY | File::APPEND | File::CREAT)

class Unready < StandardError; end

class Work
  include Sidekiq::Worker
  attr_accessor :payload

  def perform(milliseconds)
    note("begin")
    sleep(milliseconds / 1_000.0)
    raise Unready, jid if self.class::FAILS && !payload.key?("failed_at")

    note("end")
  end

  def note(word)
    LEDGER.syswrite("#{word} #{jid} #{Process.pid} #{Process.clock_gettime(Process::CLOCK_MONOTONIC)}\n")
  end

  FAILS = false
end

class Flaky < Work
  sidekiq_options retry: 5
  FAILS = true
end

class Doomed < Work
  sidekiq_options retry: 0
  FAILS = true
end
