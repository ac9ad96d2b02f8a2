# frozen_string_literal: true

# The application of a real Sidekiq server (`sidekiq -r server.rb`): what its jobs received goes back to Redis.
#
# The list `echoes` gets {"by": "ruby", "jid", "args", "payload"} for each job that ran.

require "bigdecimal"
require "date"
require "json"
require "time"
require_relative "quick"
require_relative "payloads"

def echo(job, *args, **more)
  line = JSON.generate({by: "ruby", jid: job.jid, args: args, **more}, max_nesting: 0)
  Sidekiq.redis { |connection| connection.rpush("echoes", line) }
end

class Echo
  include Sidekiq::Worker
  attr_accessor :payload

  def perform(*args)
    echo(self, *args, payload: payload)
  end
end

# Reads an order as Python writes it, with Ruby's own library.
class ReadOrder
  include Sidekiq::Worker

  def perform(order, due)
    total = order["lines"].sum { |line| BigDecimal(line["price"]) * line["count"] }
    echo(self, order["id"], Time.iso8601(order["placed_at"]).to_i, order["currency"], total.to_s("F"),
      Date.iso8601(due).yday)
  end
end

# Runs until the list `release` has something for it, or long enough for a test to look.
class Hold
  include Sidekiq::Worker

  def perform(*args)
    Sidekiq.redis do |connection|
      connection.rpush("began", jid)
      connection.blpop("release", timeout: 4)
    end
    echo(self, *args)
  end
end

module Acme
  # Fails until the key `mended` exists.
  class Fragile
    include Sidekiq::Worker

    def perform(*args)
      raise ArgumentError, "broken in Ruby ✗" unless Sidekiq.redis { |connection| connection.exists?("mended") }

      echo(self, *args)
    end
  end
end
