# frozen_string_literal: true

# sidekiq-cron: entries are made, and enqueued as its poller does.
#
#   {"create": {"name": "cleanup", "cron": "* * * * *", "class": "Cleanup", "args": [7]}}   → true
#   {"disable": "cleanup"}                                                                   → nil
#   {"enable": "cleanup"}                                                                    → nil
#   {"status": "cleanup"}                                                                    → "enabled"
#   {"enqueue": 1790000000.5}     what its poller does at that time                          → jids in queue:low

require_relative "lines"
require "sidekiq-cron"

class Cleanup
  include Sidekiq::Worker
  sidekiq_options queue: "low", retry: 3
end

answer_lines do |order|
  if order.key?("create")
    Sidekiq::Cron::Job.create(order["create"])
  elsif order.key?("disable")
    Sidekiq::Cron::Job.find(order["disable"]).disable!
  elsif order.key?("enable")
    Sidekiq::Cron::Job.find(order["enable"]).enable!
  elsif order.key?("status")
    Sidekiq::Cron::Job.find(order["status"]).status
  else
    Sidekiq::Cron::Job.all.each { |job| job.test_and_enque_for_time!(Time.at(order["enqueue"]).utc) }
    Sidekiq::Queue.new("low").map(&:jid)
  end
end
