# frozen_string_literal: true

# A Ruby application that enqueues what it is told, with the verbs of Sidekiq's own job classes.
#
#   {"class": "Echo", "verb": "perform_in", "arguments": [5, "x"], "set": {"queue": "low"}}   → what the verb returned
#   {"push": {"class": "Echo", "args": [1]}}                                                  → jid
#   {"push_bulk": {"class": "Echo", "args": [[1], [2]]}}                                      → jids

require_relative "lines"

class Echo
  include Sidekiq::Worker
end

class Hold
  include Sidekiq::Worker
end

module Acme
  class Fragile
    include Sidekiq::Worker
  end
end

answer_lines do |order|
  next Sidekiq::Client.push(order["push"]) if order.key?("push")
  next Sidekiq::Client.push_bulk(order["push_bulk"]) if order.key?("push_bulk")

  target = Object.const_get(order["class"])
  target = target.set(order["set"].transform_keys(&:to_sym)) if order.key?("set")
  target.public_send(order["verb"], *order["arguments"])
end
