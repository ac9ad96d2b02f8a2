# frozen_string_literal: true

# Runs Sidekiq::API calls that the tests spell in Ruby, and answers with their value.
#
#   {"ruby": "Sidekiq::RetrySet.new.find_job(jid).retry", "locals": {"jid": "…"}}   → its value

require_relative "lines"
require "sidekiq/api"
require "sidekiq/scheduled"

answer_lines do |request|
  scope = Object.new.instance_eval { binding }
  request["locals"].each { |name, value| scope.local_variable_set(name, value) }
  scope.eval(request["ruby"])
end
