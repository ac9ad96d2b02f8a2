# frozen_string_literal: true

# A Rails application's jobs, without the rest of Rails: the application of a real Sidekiq server
# (`sidekiq -r active_job.rb`), and what active_job_client.rb enqueues.
#
# The list `echoes` gets {"by": "ruby", "jid", …} for each job that ran.

require "json"
require_relative "quick"
require "active_support/all"
require "active_job"
require "active_job/queue_adapters/sidekiq_adapter"
require "global_id"

GlobalID.app = "shop"
ActiveJob::Base.queue_adapter = :sidekiq
ActiveJob::Base.logger = Logger.new($stderr, level: Logger::ERROR)

# Something that lives in Ruby's database only.
class Account
  include GlobalID::Identification
  attr_reader :id

  def initialize(id)
    @id = id
  end

  def self.find(id)
    new(Integer(id))
  end
end

class ApplicationJob < ActiveJob::Base
  private

  def echo(**facts)
    facts = {by: "ruby", jid: provider_job_id, job_id: job_id, queue: queue_name, executions: executions, **facts}
    Sidekiq.redis { |connection| connection.rpush("echoes", JSON.generate(facts)) }
  end
end

class SampleJob < ApplicationJob
  queue_as :default

  def perform(*arguments, **keywords)
    echo(received: [arguments, keywords].inspect)
  end
end

# Gets values, each with the Ruby code of what it has to be.
class CompareJob < ApplicationJob
  def perform(pairs)
    differences = pairs.reject do |value, code|
      expected = eval(code) # rubocop:disable Security/Eval
      expected.class == value.class && expected == value
    end
    echo(compared: pairs.size, differences: differences.inspect)
  end
end

class StrictJob < ApplicationJob
  def perform(order, currency:, note: "none")
    echo(received: [order, currency, note])
  end
end

# Fails in Python, and runs here.
class FragileJob < ApplicationJob
  def perform(*)
    echo(received: [])
  end
end
