# frozen_string_literal: true

# A Ruby application that enqueues what it is told, with the verbs of Sidekiq's own job classes.
#
#   {"class": "Echo", "verb": "perform_in", "arguments": [5, "x"], "set": {"queue": "low"}}   → what the verb returned
#   {"push": {"class": "Echo", "args": [1]}}                                                  → jid

require_relative "lines"

class Echo
  include Sidekiq::Worker
end

module Acme
  class Fragile
    include Sidekiq::Worker
  end
end

answer_lines do |order|
  next Sidekiq::Client.push(order["push"]) if order.key?("push")

  target = Object.const_get(order["class"])
  target = target.set(order["set"].transform_keys(&:to_sym)) if order.key?("set")
  target.public_send(order["verb"], *order["arguments"])
end
