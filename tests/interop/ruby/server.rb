# frozen_string_literal: true

# The application of a real Sidekiq server (`sidekiq -r server.rb`): what its jobs received goes back to Redis.
#
# The list `echoes` gets {"by": "ruby", "jid", "args", "payload"} for each job that ran.

require "json"
require "sidekiq"

Redis.silence_deprecations = true # 6.4 is older than the client beside it

# How long a fleet waits before it polls is not what the tests are about.
module PollsAtOnce
  private

  def initial_wait; end
end
Sidekiq::Scheduled::Poller.prepend(PollsAtOnce) if Sidekiq.server?

# Hands a job the payload that it came with.
class Payloads
  def call(job, payload, _queue)
    job.payload = payload if job.respond_to?(:payload=)
    yield
  end
end

Sidekiq.configure_server do |config|
  config.options[:poll_interval_average] = 0.2
  config.server_middleware { |chain| chain.add(Payloads) }
end

class Echo
  include Sidekiq::Worker
  attr_accessor :payload

  def perform(*args)
    echo = JSON.generate({by: "ruby", jid: jid, args: args, payload: payload}, max_nesting: 0)
    Sidekiq.redis { |connection| connection.rpush("echoes", echo) }
  end
end

module Acme
  # Fails wherever it runs.
  class Fragile
    include Sidekiq::Worker

    def perform(*_args)
      raise ArgumentError, "broken in Ruby ✗"
    end
  end
end
