# frozen_string_literal: true

# Hands each job that has `payload=` the payload that it came with.

require "sidekiq"

class Payloads
  def call(job, payload, _queue)
    job.payload = payload if job.respond_to?(:payload=)
    yield
  end
end

Sidekiq.configure_server do |config|
  config.server_middleware { |chain| chain.add(Payloads) }
end
