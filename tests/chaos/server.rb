# frozen_string_literal: true

# A real Sidekiq server that shares queues with kiqcluster; its jobs write to the same ledger (tests/chaos/ledger.py).

require "sidekiq"

Redis.silence_deprecations = true # 6.4 is older than the client beside it

LEDGER = File.open(ENV.fetch("CHAOS_LEDGER"), File::WRONLY | File::APPEND | File::CREAT)

def note(word, jid)
  LEDGER.syswrite("#{word} #{jid} #{Process.pid} #{Process.clock_gettime(Process::CLOCK_MONOTONIC)}\n")
end

class Work
  include Sidekiq::Worker

  def perform(milliseconds, *_ballast)
    note("begin", jid)
    sleep(milliseconds / 1_000.0)
    note("end", jid)
  end
end
