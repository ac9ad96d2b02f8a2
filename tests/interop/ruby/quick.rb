# frozen_string_literal: true

# How long a Sidekiq process waits before it polls or beats is not what the tests are about.

require "sidekiq"

Redis.silence_deprecations = true # 6.4 is older than the client beside it

module PollsAtOnce
  private

  def initial_wait; end
end

module BeatsOften
  private

  def start_heartbeat
    loop do
      heartbeat
      sleep 0.3
    end
  end
end

if Sidekiq.server?
  Sidekiq::Scheduled::Poller.prepend(PollsAtOnce)
  Sidekiq::Launcher.prepend(BeatsOften)
  Sidekiq.options[:poll_interval_average] = 0.2
end
