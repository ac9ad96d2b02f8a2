# frozen_string_literal: true

# Runs Ruby code with a Rails application's jobs at hand, and answers with its value.
#
#   {"ruby": "SampleJob.perform_later(:a).provider_job_id"}   → jid

require_relative "lines"
require_relative "active_job"
require "sidekiq/api"

answer_lines do |request|
  eval(request["ruby"]) # rubocop:disable Security/Eval
end
